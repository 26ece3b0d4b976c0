//! What nodes of a cluster have refused to run of a client's, which is what its errors must be.

/// So often a request is sent elsewhere, and its client gets what is said then.
const HOPS_MAX: usize = 5;

/// What clients get in place of what is sent elsewhere and is not followed.
pub(crate) const NOT_SERVED: &[u8] = b"-CLUSTERDOWN Hash slot not served\r\n";

#[derive(Default)]
pub(crate) struct Refusals(Vec<Refused>);

struct Refused {
    at: u64,
    node: u32,
    /// The name of the command as the client spelt it, and its key.
    tag: Vec<u8>,
    key: Vec<u8>,
    text: Vec<u8>,
    /// It was to be sent elsewhere.
    is_redirect: bool,
}

impl Refusals {
    /// Returns how often this was to be sent elsewhere, since it was asked for. What a node says of it again, with no other
    /// node in between, was not followed: it stands behind something else that the node refuses for now, or its connection
    /// ended before the gateway heard of it.
    pub(crate) fn note(
        &mut self,
        (tag, key): (&[u8], &[u8]),
        text: &[u8],
        is_redirect: bool,
        (node, since, now): (u32, u64, u64),
    ) -> usize {
        let (tag, key, text) = (tag.to_vec(), key.to_vec(), text.to_vec());
        self.0.push(Refused {
            at: now,
            node,
            tag: tag.clone(),
            key: key.clone(),
            text,
            is_redirect,
        });
        let mut nodes: Vec<u32> =
            self.redirects((&tag, &key), since).map(|refused| refused.node).collect();
        nodes.dedup();
        nodes.len()
    }

    fn hops(&self, what: (&[u8], &[u8]), since: u64) -> usize {
        self.redirects(what, since).count()
    }

    fn redirects(&self, (tag, key): (&[u8], &[u8]), since: u64) -> impl Iterator<Item = &Refused> {
        let all = self.0.iter().filter(move |it| it.is_redirect && it.at >= since);
        all.filter(move |it| it.tag == tag && it.key == key)
    }

    /// What has been said since then, for a message.
    pub(crate) fn describe(&self, since: u64) -> String {
        let all = self.0.iter().filter(|it| it.at >= since);
        let line = |it: &Refused| {
            let what = [&it.tag, &b" "[..], &it.key, b": ", it.text.trim_ascii_end()].concat();
            format!("at {} node {} of {}", it.at, it.node, what.escape_ascii())
        };
        all.map(line).collect::<Vec<_>>().join("; ")
    }

    /// Whether a node has sent this elsewhere since then.
    pub(crate) fn is_by(&self, node: u32, (tag, key): (&[u8], &[u8]), since: u64) -> bool {
        let mut all = self.0.iter().rev().take_while(|it| it.at >= since);
        all.any(|it| it.is_redirect && it.node == node && it.tag == tag && it.key == key)
    }

    /// What was said of this last, since then.
    pub(crate) fn last_of(&self, (tag, key): (&[u8], &[u8]), since: u64) -> Option<&[u8]> {
        let mut all = self.0.iter().rev().take_while(|it| it.at >= since);
        all.find(|it| it.tag == tag && it.key == key).map(|it| &it.text[..])
    }

    pub(crate) fn has_since(&self, since: u64) -> bool {
        self.0.last().is_some_and(|it| it.at >= since)
    }

    /// Of what nodes have said since then that clients are answered so, one that fits: whether it has been followed as
    /// often as it is at most.
    pub(crate) fn explain(
        &self,
        answer: &[u8],
        since: u64,
        fits: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Option<bool> {
        let is_why = |text: &[u8]| text == answer || (answer == NOT_SERVED && is_sent_back(text));
        let is_it = |it: &&Refused| it.at >= since && is_why(&it.text) && fits(&it.tag, &it.key);
        let found = self.0.iter().rev().filter(is_it);
        found.map(|it| self.hops((&it.tag, &it.key), since) > HOPS_MAX || !it.is_redirect).max()
    }
}

/// The most times that nodes may send a request elsewhere: the last one is not followed.
pub(crate) const TRIES_MAX: usize = HOPS_MAX + 1;

/// Whether a node of a cluster says so of what it does not run.
pub(crate) fn is_refusal(reply: &[u8]) -> bool {
    const WORDS: [&[u8]; 6] =
        [b"-UNBLOCKED force ", b"-MOVED ", b"-ASK ", b"-TRYAGAIN ", b"-CLUSTERDOWN ", b"-LOADING "];
    WORDS.iter().any(|word| reply.starts_with(word))
}

/// What is for gateways, and not for clients.
pub(crate) fn is_sent_back(reply: &[u8]) -> bool {
    const WORDS: [&[u8]; 3] = [b"-MOVED ", b"-ASK ", b"-TRYAGAIN "];
    WORDS.iter().any(|word| reply.starts_with(word))
}
