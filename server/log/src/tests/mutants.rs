//! Checks that the directed tests fail without the rules that they test.

use std::panic::catch_unwind;

use leasehold_leases::mutants::{Rule, with};

use super::{damage, reuse, torn};

#[test]
fn each_directed_test_fails_without_its_rule() {
    let directed: [(Rule, fn()); 5] = [
        (
            Rule::H114Segment,
            reuse::h114_a_place_in_an_earlier_use_of_the_file_is_not_read,
        ),
        (Rule::H116Whole, torn::every_group_is_torn_at_every_sector),
        (
            Rule::H117Behind,
            damage::a_damaged_group_is_followed_by_groups_that_name_it_as_synced,
        ),
        (
            Rule::H117Follows,
            damage::a_damaged_group_is_followed_by_another_segment,
        ),
        (
            Rule::H118Heads,
            torn::the_head_is_durable_and_the_group_behind_it_is_torn,
        ),
    ];
    for (rule, test) in directed {
        test();
        assert!(
            catch_unwind(|| with(rule, test)).is_err(),
            "passes without its rule: {rule:?}"
        );
    }
}
