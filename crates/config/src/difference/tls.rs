//! What changes of TLS.

use cashew_tls::{Identity, ListenerTls, ServerTls};

use super::Options;
use crate::client_user;
use crate::replica_reads::SpanText;

impl Options<'_> {
    pub(super) fn tls(&mut self, old: Option<&ListenerTls>, new: Option<&ListenerTls>) {
        let (Some(old), Some(new)) = (old, new) else {
            return self.secret("tls", old, new);
        };
        // All fields by name, so that none is forgotten.
        let ListenerTls {
            identities,
            client_ca,
            client_auth,
            client_user,
            client_names,
            min_version,
            ciphers,
            handshake_timeout_ms,
            hand_over,
        } = old;
        if *identities != new.identities {
            self.changed("tls certificate", &shown(identities), &shown(&new.identities));
            if shown(identities) == shown(&new.identities) {
                self.say("tls certificate: changed");
            }
        }
        self.secret("tls client_ca", client_ca.as_ref(), new.client_ca.as_ref());
        self.changed("tls client_auth", &client_auth.name(), &new.client_auth.name());
        self.changed(
            "tls client_user",
            &client_user::shown(*client_user, client_names),
            &client_user::shown(new.client_user, &new.client_names),
        );
        self.changed("tls min_version", &min_version.name(), &new.min_version.name());
        self.changed("tls ciphers", &ciphers.name(), &new.ciphers.name());
        self.changed("tls hand_over", hand_over, &new.hand_over);
        let span = |ms: u64| SpanText(ms).to_string();
        let timeouts = [*handshake_timeout_ms, new.handshake_timeout_ms].map(span);
        self.changed("tls handshake_timeout", &timeouts[0], &timeouts[1]);
    }

    pub(super) fn server_tls(
        &mut self,
        key: &str,
        old: Option<&ServerTls>,
        new: Option<&ServerTls>,
    ) {
        let (Some(old), Some(new)) = (old, new) else {
            return self.secret(key, old, new);
        };
        let ServerTls { ca, server_name, identity, verify, min_version, ciphers, .. } = old;
        self.secret(&format!("{key} ca"), Some(ca), Some(&new.ca));
        let name =
            |name: &Option<String>| name.clone().unwrap_or_else(|| "each its host".to_owned());
        self.changed(&format!("{key} server_name"), &name(server_name), &name(&new.server_name));
        self.secret(&format!("{key} certificate"), identity.as_ref(), new.identity.as_ref());
        self.changed(&format!("{key} verify"), verify, &new.verify);
        self.changed(&format!("{key} min_version"), &min_version.name(), &new.min_version.name());
        self.changed(&format!("{key} ciphers"), &ciphers.name(), &new.ciphers.name());
    }
}

fn shown(identities: &[Identity]) -> String {
    let files: Vec<&str> = identities.iter().map(|identity| identity.file.as_str()).collect();
    files.join(", ")
}
