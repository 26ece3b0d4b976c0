//! Which replicas a group has, by what its Sentinels say: without any I/O.

use cashew_config::snapshot::Address;

/// What each Sentinel says, and what most of them agree on.
#[derive(Debug)]
pub(crate) struct ReplicaViews {
    /// By Sentinel; `None` of one that does not answer.
    views: Vec<Option<View>>,
    told: Option<Agreed>,
}

#[derive(Debug)]
struct View {
    primary: Address,
    /// And whether they are down.
    replicas: Vec<(Address, bool)>,
}

/// What most of all Sentinels agree on, those that do not answer counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// The primary whose replicas they are.
    pub(crate) primary: Address,
    /// In their order.
    pub(crate) replicas: Vec<Address>,
    /// Those of them that are down.
    pub(crate) down: Vec<Address>,
}

impl ReplicaViews {
    pub(crate) fn new(sentinels: usize) -> Self {
        Self { views: (0..sentinels).map(|_| None).collect(), told: None }
    }

    pub(crate) fn says(
        &mut self,
        sentinel: usize,
        primary: Address,
        replicas: Vec<(Address, bool)>,
    ) {
        if let Some(view) = self.views.get_mut(sentinel) {
            *view = Some(View { primary, replicas });
        }
    }

    pub(crate) fn lost(&mut self, sentinel: usize) {
        if let Some(view) = self.views.get_mut(sentinel) {
            *view = None;
        }
    }

    /// What is agreed on, if that is news. Only views of the primary in effect count, and while there are not
    /// enough of them everything stays as it was.
    pub(crate) fn news(&mut self, primary: &Address) -> Option<Agreed> {
        let majority = self.views.len() / 2 + 1;
        let views: Vec<&View> =
            self.views.iter().flatten().filter(|view| view.primary == *primary).collect();
        if views.len() < majority {
            return None;
        }
        let before = self.told.as_ref().filter(|told| told.primary == *primary);
        let mut known: Vec<&Address> = views
            .iter()
            .flat_map(|view| &view.replicas)
            .map(|(address, _)| address)
            .chain(before.iter().flat_map(|told| &told.replicas))
            .filter(|address| *address != primary)
            .collect();
        known.sort_unstable();
        known.dedup();
        let count = |is_it: &dyn Fn(&(Address, bool)) -> bool| {
            views.iter().filter(|view| view.replicas.iter().any(is_it)).count()
        };
        // Who joins, or leaves, does so by the word of most.
        let is_replica = |address: &&Address| {
            let named = count(&|(its, _)| its == *address);
            let was = before.is_some_and(|told| told.replicas.contains(address));
            named >= majority || was && views.len() - named < majority
        };
        let is_down =
            |address: &&Address| count(&|it| *it == ((*address).clone(), true)) >= majority;
        let replicas: Vec<Address> = known.into_iter().filter(is_replica).cloned().collect();
        let down = replicas.iter().filter(is_down).cloned().collect();
        let agreed = Agreed { primary: primary.clone(), replicas, down };
        if self.told.as_ref() == Some(&agreed) {
            return None;
        }
        self.told = Some(agreed.clone());
        Some(agreed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> Address {
        Address { host: "h".to_owned(), port }
    }

    /// Replicas by their ports; those that are negative are down.
    fn replicas(ports: &[i32]) -> Vec<(Address, bool)> {
        ports.iter().map(|port| (at(port.unsigned_abs() as u16), *port < 0)).collect()
    }

    fn agreed(primary: u16, ports: &[i32]) -> Option<Agreed> {
        let all = replicas(ports);
        let down = all.iter().filter(|(_, is_down)| *is_down).map(|(it, _)| it.clone()).collect();
        let replicas = all.into_iter().map(|(it, _)| it).collect();
        Some(Agreed { primary: at(primary), replicas, down })
    }

    #[test]
    fn most_of_the_sentinels_say_who_joins_and_who_leaves() {
        let mut views = ReplicaViews::new(3);
        views.says(0, at(1), replicas(&[2, 3]));
        assert_eq!(views.news(&at(1)), None, "one of three is nobody's word");
        views.says(1, at(1), replicas(&[3, 9]));
        assert_eq!(views.news(&at(1)), agreed(1, &[3]));
        assert_eq!(views.news(&at(1)), None, "it is no news");
        views.says(2, at(1), replicas(&[2, 3]));
        assert_eq!(views.news(&at(1)), agreed(1, &[2, 3]));
        views.says(1, at(1), replicas(&[2, 3, 9]));
        assert_eq!(views.news(&at(1)), None);
        // One that has forgotten a replica takes nobody out, and nor do two that are dead.
        views.says(0, at(1), replicas(&[3]));
        assert_eq!(views.news(&at(1)), None);
        views.lost(1);
        assert_eq!(views.news(&at(1)), None);
        views.lost(2);
        assert_eq!(views.news(&at(1)), None);
        views.says(1, at(1), replicas(&[3]));
        assert_eq!(views.news(&at(1)), agreed(1, &[3]));
    }

    #[test]
    fn who_is_down_is_so_by_the_word_of_most_and_stays_a_replica() {
        let mut views = ReplicaViews::new(3);
        (0..3).for_each(|it| views.says(it, at(1), replicas(&[2, 3])));
        assert_eq!(views.news(&at(1)), agreed(1, &[2, 3]));
        views.says(0, at(1), replicas(&[2, -3]));
        assert_eq!(views.news(&at(1)), None);
        views.says(1, at(1), replicas(&[2, -3]));
        assert_eq!(views.news(&at(1)), agreed(1, &[2, -3]));
        views.says(1, at(1), replicas(&[2, 3]));
        assert_eq!(views.news(&at(1)), agreed(1, &[2, 3]));
    }

    #[test]
    fn only_views_of_the_primary_in_effect_count() {
        let mut views = ReplicaViews::new(3);
        (0..3).for_each(|it| views.says(it, at(1), replicas(&[2, 3])));
        assert_eq!(views.news(&at(1)), agreed(1, &[2, 3]));
        // Another takes the writes, which two of them still have among the replicas.
        assert_eq!(views.news(&at(2)), None);
        views.says(0, at(2), replicas(&[-1, 3]));
        assert_eq!(views.news(&at(2)), None);
        views.says(1, at(2), replicas(&[-1, 3]));
        assert_eq!(views.news(&at(2)), agreed(2, &[-1, 3]));
    }
}
