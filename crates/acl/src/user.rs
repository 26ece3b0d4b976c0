//! A user: passwords and permissions.

use cashew_protocol::redis::Command;
use cashew_protocol::resp::quoted_words;

use crate::denial::{Call, Denial};
use crate::fault::Fault;
use crate::keys::Touch;
use crate::password::Hash;
use crate::selector::{CallKeys, Selector};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    name: String,
    is_on: bool,
    /// Every password is right.
    takes_any_password: bool,
    /// Means something to servers only; kept so that the listing is complete.
    skips_sanitizing: bool,
    passwords: Vec<Hash>,
    root: Selector,
    selectors: Vec<Selector>,
    is_unrestricted: bool,
}

impl User {
    /// One who may do nothing, and cannot log in.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_on: false,
            takes_any_password: false,
            skips_sanitizing: false,
            passwords: Vec::new(),
            root: Selector::default(),
            selectors: Vec::new(),
            is_unrestricted: false,
        }
    }

    /// Makes a user of rules as ACL SETUSER takes them, each separate, as [`split_rules`] gives
    /// them. The error has the index of the rule.
    pub fn with_rules<'r>(
        name: &str,
        rules: impl IntoIterator<Item = &'r str>,
    ) -> Result<Self, (usize, Fault)> {
        let mut user = Self::new(name);
        for (at, rule) in rules.into_iter().enumerate() {
            user.apply(rule).map_err(|fault| (at, fault))?;
        }
        user.is_unrestricted =
            user.root.is_unrestricted() || user.selectors.iter().any(Selector::is_unrestricted);
        Ok(user)
    }

    fn apply(&mut self, rule: &str) -> Result<(), Fault> {
        let is = |text: &str| rule.eq_ignore_ascii_case(text);
        if rule.is_empty() {
            return Ok(());
        }
        if is("on") || is("off") {
            self.is_on = is("on");
        } else if is("skip-sanitize-payload") || is("sanitize-payload") {
            self.skips_sanitizing = is("skip-sanitize-payload");
        } else if is("nopass") || is("resetpass") {
            self.takes_any_password = is("nopass");
            self.passwords.clear();
        } else if let Some(password) = hash_of(rule, '>', '#')? {
            if !self.passwords.contains(&password) {
                self.passwords.push(password);
            }
            self.takes_any_password = false;
        } else if let Some(password) = hash_of(rule, '<', '!')? {
            let at = self.passwords.iter().position(|known| *known == password);
            self.passwords.remove(at.ok_or(Fault::NoSuchPassword)?);
        } else if let Some(inner) = rule.strip_prefix('(').and_then(|rule| rule.strip_suffix(')')) {
            let mut selector = Selector::default();
            let rules = quoted_words(inner.as_bytes()).ok_or(Fault::UnbalancedQuotes)?;
            for rule in rules {
                selector.apply(str::from_utf8(&rule).map_err(|_| Fault::Syntax)?)?;
            }
            self.selectors.push(selector);
        } else if is("clearselectors") {
            self.selectors.clear();
        } else if is("reset") {
            *self = Self::new(&std::mem::take(&mut self.name));
        } else {
            self.root.apply(rule)?;
        }
        Ok(())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether one can log in as this user.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether any password is right.
    pub fn has_password(&self) -> bool {
        self.takes_any_password || !self.passwords.is_empty()
    }

    /// Whether the user may do everything: nothing need be checked.
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// Whether everybody is this user from the start, who is the one that is called `default`.
    pub fn is_open(&self) -> bool {
        self.is_on && self.takes_any_password
    }

    /// Looks at all passwords, so that the time tells nothing.
    pub(crate) fn takes(&self, password: &Hash) -> bool {
        let is_right =
            self.passwords.iter().fold(false, |is_right, known| known.matches(password) | is_right);
        self.is_on && (self.takes_any_password || is_right)
    }

    /// Whether the user may make this request. If several selectors deny it, the reason that comes
    /// closest to a permission counts, as in Redis.
    pub fn check(&self, call: &Call<'_>) -> Result<(), Denial> {
        if self.is_unrestricted {
            return Ok(());
        }
        let mut keys = CallKeys::default();
        let mut worst = Denial::Command;
        for selector in self.all_selectors() {
            match selector.check(call, &mut keys) {
                Ok(()) => return Ok(()),
                Err(denial) => worst = worst.max(denial),
            }
        }
        Err(worst)
    }

    /// Whether a selector that allows the request lets the user read every key: SORT's BY and GET
    /// want that.
    pub fn may_read_every_key(&self, call: &Call<'_>) -> bool {
        let mut keys = CallKeys::default();
        let mut selectors = self.all_selectors();
        selectors.any(|of_it| of_it.check(call, &mut keys).is_ok() && of_it.reads_every_key())
    }

    /// Whether the user may do that to a key, by a command that has no other arguments to look at.
    pub fn may_touch(&self, command: &Command, key: &[u8], touch: Touch) -> Result<(), Denial> {
        let mut worst = Denial::Command;
        for selector in self.all_selectors() {
            match (selector.allows_command(command), selector.allows_key(key, touch)) {
                (true, true) => return Ok(()),
                (true, false) => worst = Denial::Key(1),
                (false, _) => {}
            }
        }
        Err(worst)
    }

    /// Whether there is a selector that lets the user read the key, by whatever command.
    pub fn may_read(&self, key: &[u8]) -> bool {
        let reads = Touch { reads: true, writes: false };
        self.all_selectors().any(|selector| selector.allows_key(key, reads))
    }

    /// Whether the user may make a request of one key whose start is here, with that key in it, whatever follows.
    pub fn may_begin(&self, call: &Call<'_>) -> bool {
        let Some((at, touch)) = call.only_key() else { return false };
        // Arguments that are not here may be some that have it read too.
        let is_decided_later = matches!(call.command.name, "set" | "bitfield");
        let touch = if is_decided_later { Touch::ANY } else { touch };
        self.may_touch(call.command, call.args[at].of(call.buf), touch).is_ok()
    }

    /// Whether the user may call the command whatever its arguments.
    pub fn may_call(&self, command: &Command) -> bool {
        self.all_selectors().any(|selector| selector.allows_command(command))
    }

    fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.selectors)
    }

    /// Those that ACL GETUSER shows.
    pub fn flags(&self) -> Vec<&'static str> {
        let mut flags = vec![if self.is_on { "on" } else { "off" }];
        if self.takes_any_password {
            flags.push("nopass");
        }
        if self.skips_sanitizing {
            flags.push("skip-sanitize-payload");
        }
        flags
    }

    /// SHA-256 in hexadecimal.
    pub fn password_hashes(&self) -> Vec<String> {
        self.passwords.iter().map(Hash::hex).collect()
    }

    /// The permissions that do not stand in parentheses.
    pub fn root(&self) -> &Selector {
        &self.root
    }

    /// Those in parentheses.
    pub fn selectors(&self) -> &[Selector] {
        &self.selectors
    }

    /// As ACL LIST shows the user, and as an ACL file has it: "user NAME rules…". It can be read again: Redis does not quote
    /// what is in parentheses, so that some of its own lines cannot.
    pub fn line(&self) -> String {
        let mut line = format!("user {} {}", self.name, self.flags().join(" "));
        for hash in self.password_hashes() {
            line += &format!(" #{hash}");
        }
        line += &format!(" {}", self.root.rules().join(" "));
        for selector in &self.selectors {
            line += &format!(" {}", selector.in_parentheses());
        }
        line
    }
}

/// The password that the rule gives as a text behind `plain`, or as a hash behind `hashed`.
fn hash_of(rule: &str, plain: char, hashed: char) -> Result<Option<Hash>, Fault> {
    if let Some(password) = rule.strip_prefix(plain) {
        return Ok(Some(Hash::of(password.as_bytes())));
    }
    match rule.strip_prefix(hashed) {
        Some(hex) => Hash::parse(hex).map(Some).ok_or(Fault::BadHash),
        None => Ok(None),
    }
}

/// The rules of a text, separated by spaces; what is in parentheses is one. The error is for one
/// that is not closed.
pub fn split_rules(text: &str) -> Result<Vec<String>, Fault> {
    let mut rules = Vec::new();
    let mut open: Option<String> = None;
    for word in text.split_ascii_whitespace() {
        match &mut open {
            Some(selector) => {
                *selector += &format!(" {word}");
                if word.ends_with(')') {
                    rules.extend(open.take());
                }
            }
            None if word.starts_with('(') && !word.ends_with(')') => open = Some(word.to_owned()),
            None => rules.push(word.to_owned()),
        }
    }
    match open {
        Some(_) => Err(Fault::UnmatchedParenthesis),
        None => Ok(rules),
    }
}
