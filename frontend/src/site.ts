/** Pages without the application: sign-in, errors, links. Styles and the theme button. */
import "./styles/site.css";
import { followSystemTheme, switchTheme } from "./shell/theme";

followSystemTheme();
document.querySelectorAll("[data-toggle=theme]").forEach((element) => element.addEventListener("click", () => switchTheme()));
