export const account = { "account.last_run": "Last public run", "account.last_run_curve": "Speed of the last public run, tokens per second" };
