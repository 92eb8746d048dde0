/** Pages without the application: what says that something went wrong. Styles and the theme button. */
import "./styles/site.css";
import "./styles/error.css";
import { followSystemTheme, switchTheme } from "./shell/theme";

followSystemTheme();
document.querySelectorAll("[data-toggle=theme]").forEach((element) => element.addEventListener("click", () => switchTheme()));
