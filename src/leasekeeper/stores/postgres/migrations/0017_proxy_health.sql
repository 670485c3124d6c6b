-- Schema 17. What is wrong with a proxy, since when, how often it was asked, and when it is asked again.
ALTER TABLE proxies ADD COLUMN trouble text;
ALTER TABLE proxies ADD COLUMN trouble_detail text NOT NULL DEFAULT '';
ALTER TABLE proxies ADD COLUMN trouble_at bigint;
ALTER TABLE proxies ADD COLUMN asked bigint NOT NULL DEFAULT 0;
ALTER TABLE proxies ADD COLUMN ask_at bigint;
ALTER TABLE reviews ADD COLUMN proxy_id text;
CREATE INDEX profiles_proxy ON profiles (proxy_id, profile_id) WHERE proxy_id IS NOT NULL;
CREATE INDEX proxies_in_trouble ON proxies (proxy_id) WHERE trouble IS NOT NULL;
