export const account = { "account.last_run": "Dernière exécution publique", "account.last_run_curve": "Vitesse de la dernière exécution publique, jetons par seconde" };
