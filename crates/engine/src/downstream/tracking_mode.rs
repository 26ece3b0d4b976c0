//! What a client has asked for by CLIENT TRACKING. See [`crate::redis::client_tracking`].

/// It moves with the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrackingMode {
    pub(crate) scope: Scope,
    /// NOLOOP. It is shown, and changes nothing: see [`crate::redis::client_tracking`].
    pub(crate) no_loop: bool,
    /// CLIENT CACHING has been said for what comes next.
    pub(crate) is_excepted: bool,
}

/// Of which keys it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// That it has read.
    Read,
    /// That it has read behind CLIENT CACHING YES.
    OptIn,
    /// That it has read, but behind CLIENT CACHING NO.
    OptOut,
    /// That begin so, whoever has read them. One that is empty stands for all.
    Prefixes(Vec<Box<[u8]>>),
}

impl TrackingMode {
    /// Whether the keys that are read next are to be remembered.
    pub(crate) fn remembers(&self) -> bool {
        match self.scope {
            Scope::Read => true,
            Scope::OptIn => self.is_excepted,
            Scope::OptOut => !self.is_excepted,
            Scope::Prefixes(_) => false,
        }
    }

    /// As CLIENT TRACKINGINFO has it.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec!["on"];
        let (scope, exception) = match self.scope {
            Scope::Read => ("", ""),
            Scope::OptIn => ("optin", "caching-yes"),
            Scope::OptOut => ("optout", "caching-no"),
            Scope::Prefixes(_) => ("bcast", ""),
        };
        flags.extend(Some(scope).filter(|it| !it.is_empty()));
        flags.extend(Some(exception).filter(|it| self.is_excepted && !it.is_empty()));
        flags.extend(self.no_loop.then_some("noloop"));
        flags
    }

    pub(crate) fn prefixes(&self) -> &[Box<[u8]>] {
        match &self.scope {
            Scope::Prefixes(prefixes) => prefixes,
            Scope::Read | Scope::OptIn | Scope::OptOut => &[],
        }
    }

    /// In words, for where the client moves to.
    pub(crate) fn words(&self) -> Vec<Vec<u8>> {
        let flags = self.flags().into_iter().map(|flag| flag.as_bytes().to_vec());
        let prefixes =
            self.prefixes().iter().flat_map(|prefix| [b"prefix".to_vec(), prefix.to_vec()]);
        flags.chain(prefixes).collect()
    }

    /// What [`TrackingMode::words`] has said; `None` without words.
    pub(crate) fn of_words(words: &[Vec<u8>]) -> Option<Self> {
        let mut words = words.iter();
        let mut mode = Self { scope: Scope::Read, no_loop: false, is_excepted: false };
        words.next()?;
        while let Some(word) = words.next() {
            match &word[..] {
                b"optin" => mode.scope = Scope::OptIn,
                b"optout" => mode.scope = Scope::OptOut,
                b"bcast" => mode.scope = Scope::Prefixes(Vec::new()),
                b"caching-yes" | b"caching-no" => mode.is_excepted = true,
                b"noloop" => mode.no_loop = true,
                b"prefix" => {
                    let prefix = words.next().map(|prefix| prefix.clone().into_boxed_slice());
                    if let Scope::Prefixes(prefixes) = &mut mode.scope {
                        prefixes.extend(prefix);
                    }
                }
                _ => {}
            }
        }
        Some(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_same_where_the_client_moves_to() {
        let prefixes = Scope::Prefixes(vec![(*b"a").into(), (*b"prefix").into()]);
        for scope in [Scope::Read, Scope::OptIn, Scope::OptOut, prefixes] {
            for (no_loop, is_excepted) in [(false, false), (true, false), (false, true)] {
                let is_excepted = is_excepted && matches!(scope, Scope::OptIn | Scope::OptOut);
                let mode = TrackingMode { scope: scope.clone(), no_loop, is_excepted };
                assert_eq!(TrackingMode::of_words(&mode.words()), Some(mode));
            }
        }
        assert_eq!(TrackingMode::of_words(&[]), None);
    }
}
