import { call } from "./http";

export interface ApiKey {
  id: string;
  name: string;
  prefix: string;
  scopes: string[];
  state: "live" | "expired" | "revoked";
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
}

/** Keys of the signed-in user (docs/api.md). Every call may throw an ApiError. */
export const keys = {
  list: () => call<{ items: ApiKey[] }>("GET", "/api/keys").then((page) => page.items),
  create: (body: { name: string; scopes: string[]; expires_in_days: number | null }) => call<ApiKey & { secret: string }>("POST", "/api/keys", body),
  revoke: (id: string) => call<void>("DELETE", `/api/keys/${encodeURIComponent(id)}`),
};
