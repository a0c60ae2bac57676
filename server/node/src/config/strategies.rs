//! Lease strategies as they are written in the file. The strategies decide which keys each replica
//! may read locally: `strategy` in `[lease]` for all keys, and `[[lease.range]]` for the keys of a
//! range.

use leasehold_leases::{RangeMap, ReplicaSet, StrategySpec};

use super::check::{CheckResult, Checker, NodeNames};
use super::lease::{CostSection, LeaseSection, RangeSection, UnlistedName};

/// Name and settings of a strategy, for all keys or for a range.
struct StrategyFields<'a> {
    /// First key of the range; `None` for the table `[lease]` itself.
    from: Option<&'a str>,
    strategy: Option<&'a str>,
    holders: &'a [String],
    unlisted: Option<UnlistedName>,
    cost: Option<CostSection>,
}

impl<'a> StrategyFields<'a> {
    fn of_lease(lease: &'a LeaseSection) -> StrategyFields<'a> {
        StrategyFields {
            from: None,
            strategy: Some(lease.strategy.as_deref().unwrap_or("leader")),
            holders: &[],
            unlisted: lease.unlisted,
            cost: lease.cost,
        }
    }

    fn of_range(range: &'a RangeSection) -> StrategyFields<'a> {
        StrategyFields {
            from: Some(&range.from),
            strategy: range.strategy.as_deref(),
            holders: &range.holders,
            unlisted: range.unlisted,
            cost: range.cost,
        }
    }

    fn field(&self, part: &str) -> String {
        match self.from {
            None => format!("lease.{part}"),
            Some(from) => format!("{part} of lease.range from {from:?}"),
        }
    }

    /// Returns the strategy's name. If the name is omitted, one of the given fields determines the
    /// strategy. Returns `None` if no such field is given either.
    fn name(&self) -> Option<&'a str> {
        let given = [
            (!self.holders.is_empty(), "fixed"),
            (self.unlisted.is_some(), "quorum"),
            (self.cost.is_some(), "cost"),
        ];
        let implied = given.into_iter().find(|(given, _)| *given);
        self.strategy.or(implied.map(|(_, name)| name))
    }
}

impl Checker<'_> {
    /// Returns the strategies for all keys, by key range.
    pub(super) fn strategies(
        &self,
        lease: &LeaseSection,
        names: &NodeNames,
    ) -> CheckResult<RangeMap<StrategySpec>> {
        let of_all = self.strategy(&StrategyFields::of_lease(lease), names)?;
        if matches!(of_all, StrategySpec::Fixed { .. }) && lease.range.is_empty() {
            let accepted = "strategy = \"fixed\" needs at least one, with `from` and `holders`";
            return Err(self.refuse("[[lease.range]]", "not given", accepted));
        }
        self.by_range(of_all, &lease.range, |range| {
            self.strategy(&StrategyFields::of_range(range), names)
        })
    }

    fn strategy(
        &self,
        fields: &StrategyFields<'_>,
        names: &NodeNames,
    ) -> CheckResult<StrategySpec> {
        let Some(name) = fields.name() else {
            let accepted = format!(
                "accepted are {}; or give the `holders`",
                StrategySpec::NAMES.join(", ")
            );
            return Err(self.refuse(fields.field("strategy"), "not given", accepted));
        };
        self.reject_foreign_fields(fields, name)?;
        Ok(match name {
            "none" => StrategySpec::None,
            "leader" => StrategySpec::Leader,
            "all" => StrategySpec::All,
            "quorum" => StrategySpec::Quorum {
                unlisted: fields.unlisted.unwrap_or_default().into(),
            },
            // In `[lease]` itself, the strategy applies to keys outside of all ranges.
            "fixed" if fields.from.is_none() => StrategySpec::Fixed { holders: None },
            "fixed" => StrategySpec::Fixed {
                holders: Some(self.holders(fields, names)?),
            },
            "cost" => self.cost(fields, names)?,
            other => {
                let accepted = format!("accepted are {}", StrategySpec::NAMES.join(", "));
                return Err(self.quoted(&fields.field("strategy"), other, accepted));
            }
        })
    }

    /// Refuses fields that the strategy `name` does not use.
    fn reject_foreign_fields(&self, fields: &StrategyFields<'_>, name: &str) -> CheckResult<()> {
        let unlisted = fields.unlisted.map(UnlistedName::name);
        let cost = fields.cost.is_some();
        let holders = !fields.holders.is_empty();
        for (part, found, strategy) in [
            ("holders", holders.then(|| "given".to_owned()), "fixed"),
            ("unlisted", unlisted.map(|it| format!("{it:?}")), "quorum"),
            ("cost", cost.then(|| "given".to_owned()), "cost"),
        ] {
            if let Some(found) = found
                && name != strategy
            {
                let accepted = format!("only strategy = \"{strategy}\" looks at it; leave it out");
                return Err(self.refuse(fields.field(part), found, accepted));
            }
        }
        Ok(())
    }

    fn holders(&self, fields: &StrategyFields<'_>, names: &NodeNames) -> CheckResult<ReplicaSet> {
        let field = fields.field("holders");
        if fields.holders.is_empty() {
            return Err(self.refuse(field, "empty", "name at least one node"));
        }
        let holders = fields.holders.iter();
        holders
            .map(|name| self.replica_id(&field, name, names))
            .collect()
    }

    fn cost(&self, fields: &StrategyFields<'_>, names: &NodeNames) -> CheckResult<StrategySpec> {
        let cost = fields.cost.unwrap_or_default();
        let most = names.len() - 1;
        if usize::from(cost.spare) > most {
            let accepted = format!("accepted are 0 to {most}: one less than there are nodes");
            return Err(self.refuse(fields.field("cost.spare"), cost.spare, accepted));
        }
        cost.settings().map(StrategySpec::Cost).ok_or_else(|| {
            let accepted = "accepted are 0 (only writes count) to 1 (only reads count)";
            self.refuse(fields.field("cost.read_weight"), cost.read_weight, accepted)
        })
    }
}
