import { language } from "../../i18n";

/** Day before month in both languages. */
export const dateLanguage = language === "fr" ? "fr" : "en-GB";
