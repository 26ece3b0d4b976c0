//! What pools that pass bytes through have of their own.

use super::Options;
use crate::replica_reads::SpanText;
use crate::snapshot::Tcp;

impl Options<'_> {
    pub(super) fn tcp(&mut self, old: Option<&Tcp>, new: Option<&Tcp>) {
        let protocol = |it: Option<&Tcp>| if it.is_some() { "tcp" } else { "auto" };
        self.changed("protocol", &protocol(old), &protocol(new));
        let (Some(old), Some(new)) = (old, new) else { return };
        let Tcp { balance, idle_timeout_ms, connections_max, wait_ms, send_proxy, backup, rise } =
            old;
        self.changed("balance", &balance.name(), &new.balance.name());
        let spans = [*idle_timeout_ms, new.idle_timeout_ms].map(SpanText);
        self.changed("idle_timeout", &spans[0], &spans[1]);
        self.changed("server_connections_max", connections_max, &new.connections_max);
        let spans = [*wait_ms, new.wait_ms].map(SpanText);
        self.changed("connection_wait", &spans[0], &spans[1]);
        self.changed("send_proxy", &send_proxy.name(), &new.send_proxy.name());
        let names = |names: &[String]| match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        self.changed("backup", &names(backup), &names(&new.backup));
        self.changed("server_rise", rise, &new.rise);
    }
}
