//! Runs each directed test without the rule that it tests, and checks that the test fails.

use std::panic::catch_unwind;

use leasehold_leases::mutants::{Rule, with};

macro_rules! directed {
    ($($rule:ident: $module:ident::$test:ident;)*) => {
        /// For each rule: (rule, test that must fail without the rule, name of the test).
        const DIRECTED: &[(Rule, fn(), &str)] = &[
            $((Rule::$rule, super::$module::$test, stringify!($module::$test)),)*
        ];
    };
}

directed! {
    H07Pending: leases::h07_a_promise_counts_what_is_on_its_way_to_disk;
    H07Pending: leases::h07_a_vote_carries_the_promises_of_its_sending_not_of_its_acceptance;
    H09LeaderTag: writes::h09_the_leaders_own_grants_are_in_its_vote;
    H10LeaderMarks: reads::h10_a_leader_waits_for_its_own_writes_in_flight;
    H11Tags: writes::h11_no_reader_sees_a_value_that_a_later_one_does_not;
    H13Phase1: elections::h13_what_phase_1_finds_goes_through_phase_2;
    H15RestartWait: restarts::h15_a_restarted_grantor_demands_everyone_until_its_wait_is_over;
    H15RestartWait: restarts::h23_all_grantors_restart_while_a_holder_is_cut_off;
    H16OldPromise: restarts::h16_a_restarted_holder_honours_no_old_promise;
    H18Marks: reads::h18_a_read_does_not_wait_for_a_value_that_was_replaced;
    H19Holes: leases::h19_a_promise_names_the_highest_slot_over_a_hole;
    H20Value: elections::h20_votes_at_another_ballot_commit_no_old_value;
    H21Once: writes::h21_a_retry_elsewhere_is_not_executed_again;
    H22EvenHalf: elections::h22_half_of_four_is_no_majority;
    H23DurableWait: restarts::h23_all_grantors_restart_while_a_holder_is_cut_off;
    H24Falls: leases::h24_a_barrier_on_a_dead_entry_falls;
    H26Proposed: reads::h26_the_index_is_what_was_proposed_not_what_the_leader_knows_committed;
    H26Probe: reads::h26_an_old_answer_confirms_nothing;
    H27Ahead: elections::h27_a_candidate_behind_its_quorum_fetches_first;
    H28Ballot: elections::h28_a_commit_point_commits_only_what_was_accepted_at_its_ballot;
    H29LogStart: elections::h29_a_ballots_start_is_its_leaders_word_not_a_no_op;
    H30Highest: restarts::h30_a_restart_promises_above_everything_it_has_accepted;
    H30Marks: restarts::h30_a_restarted_holder_waits_for_what_it_had_accepted;
    H31Sure: writes::h31_what_execution_may_refuse_is_not_answered_at_commit;
    H33Wiped: joining::h33_a_wiped_replica_does_not_vote;
    H34LastMulti: writes::h34_a_single_key_write_does_not_overtake_a_multi_key_one;
    H34TxnReads: txns::h34_a_write_does_not_overtake_a_transaction_that_compares_its_key;
    H36Blockers: leases::h36_a_holder_that_answers_but_cannot_persist_is_excluded;
    H36Blockers: leases::h36_a_replica_whose_storage_is_full_gives_back_and_refuses;
    H37Life: reads::h37_a_forwarded_answer_of_an_earlier_life_is_no_answer;
    H38LogStart: writes::h38_the_last_multi_key_write_of_an_earlier_leader_counts_too;
    H39Acknowledged: writes::h39_a_delayed_first_attempt_after_its_retry_is_refused;
    H42Index: writes::h42_two_writes_of_one_batch_have_two_versions;
    H43Unmarked: reads::h43_several_keys_are_read_under_leases_or_in_the_log;
    H44Truncated: compaction::h44_a_promise_counts_what_was_truncated;
    H66Executed: accepts::h66_an_executed_slot_is_not_accepted_below_the_promised_ballot;
    H71Configured: checkpoints::h71_a_restart_does_not_replace_the_choice_of_an_operator;
    H78Durable: windows::h78_a_vote_far_above_the_checkpoint_is_not_forgotten;
    H79Room: windows::h79_a_leader_stops_at_its_window_and_goes_on_when_it_moves;
    H88Rows: checkpoints::h88_a_flushed_position_comes_with_its_rows;
    H92Earlier: restarts::h92_what_an_earlier_run_asked_for_is_not_taken;
    H107Committed: compaction::h107_a_restart_executes_what_was_committed_and_nothing_else;
    H113Accept: accepts::h113_an_accept_is_no_vote_of_its_leader;
    H113Accept: accepts::h113_an_accept_that_is_sent_again_is_no_vote;
    H113Durable: accepts::h113_an_accept_is_no_vote_of_its_leader;
    H113Tag: accepts::h113_the_leaders_vote_carries_the_promises_of_its_sending;
    H121Sessions: checkpoints::h121_sessions_are_flushed_with_the_rest;
    H125Members: compaction::h125_entries_stay_until_every_member_has_flushed_them;
    H130Lists: txns::h130_readers_are_notified_of_the_keys_of_both_lists;
    H131Whole: txns::h131_a_transaction_that_fails_changes_nothing;
    H132Earlier: txns::h132_an_operation_sees_those_before_it;
    H133Abridged: txns::h133_a_repeated_transaction_says_that_its_values_were_not_kept;
    H134LastWrite: reads::h134_a_read_is_not_answered_with_a_value_that_its_slot_overwrites;
    H81Leaps: forged::h81_a_round_near_the_limit_wedges_nobody;
    H81Leaps: forged::h81_an_incarnation_that_leaps_does_not_silence_its_peer;
    H81Leaps: forged::h81_log_time_that_leaps_is_not_accepted;
    H81Leaps: forged::h81_slots_that_leap_are_not_asked_for;
    H81Leaps: forged::h81_an_answer_of_phase_1_that_leaps_hides_no_other;
    H81Leaps: forged::h81_a_lease_of_years_is_not_believed;
    H81Leaps: forged::h81_a_configuration_of_years_is_not_accepted;
    H82Frames: frames::h82_answers_to_forwarded_reads_are_split;
    H82Frames: frames::h82_commands_and_promises_are_split;
    H82Frames: frames::h82_what_was_missed_is_fetched_in_parts;
    H83Leave: restarts::h83_who_ends_while_it_may_be_believed_waits_at_its_next_start;
    H80Slew: leases::h80_a_replica_whose_clock_is_not_trusted_gives_back_and_promises_nothing;
    H80Slew: leases::h80_what_was_promised_by_a_clock_that_is_not_trusted_does_not_lapse;
    H31Room: sessions::h31_a_write_whose_session_may_make_room_is_not_answered_at_commit;
    H31Copies: sessions::h31_a_later_copy_of_a_write_that_found_no_room_is_in_flight;
    H31Unexecuted: sessions::h31_a_committed_write_is_in_flight_until_it_is_executed;
    H84Room: sessions::h84_a_session_that_made_room_is_not_opened_again;
    H84Durable: sessions::h84_a_restart_remembers_whose_sessions_may_have_made_room;
    H85Stays: sessions::h85_a_session_with_an_unanswered_write_does_not_make_room;
    H77Refused: writes::h77_a_late_first_write_does_not_let_a_refused_second_one_in;
    H77Refused: writes::h77_a_new_leader_does_not_let_a_refused_write_in;
}

#[test]
fn each_directed_test_fails_without_its_rule() {
    let passes = |rule: Rule, test: fn()| catch_unwind(|| with(rule, test)).is_ok();
    let blind = DIRECTED
        .iter()
        .filter(|(rule, test, _)| passes(*rule, *test));
    let blind: Vec<_> = blind.map(|(rule, _, name)| (rule, name)).collect();
    assert!(blind.is_empty(), "passes without its rule: {blind:#?}");
}
