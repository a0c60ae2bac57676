//! Damage to synced bytes. A start refuses the damage, or the damage has no effect.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::*;

/// Writes until the log has this many segments.
pub(super) fn filled(segment_bytes: usize, segments: usize) -> Written {
    let mut written = Written::new(segment_bytes);
    let mut slot = 0;
    while written.log.segments().count() < segments {
        slot += 1;
        let log = LogId::ALL[(slot % 7 == 0) as usize];
        let bytes = [30, 0, 500, 5000][slot as usize % 4];
        written.write(&[accepted(log, slot, slot / 10, bytes)]);
        if slot % 20 == 0 {
            written.write(&facts(slot / 20));
        }
    }
    written
}

/// Recovers the log with a bit flipped. Returns whether the damage was noticed.
///
/// # Panics
/// Panics if the damage was not noticed and the contents are not those that were written.
fn is_noticed(written: &mut Written, segment: SegmentId, bit: usize) -> bool {
    written.flip(segment, bit);
    let noticed = match written.recover() {
        Err(_) => true,
        Ok(log) => {
            let found = contents(&log, &written.disk);
            assert_eq!(found, written.contents, "bit {bit} of segment {segment}");
            false
        }
    };
    written.flip(segment, bit);
    noticed
}

impl Written {
    fn flip(&mut self, segment: SegmentId, bit: usize) {
        let mut segments = self.disk.segments_mut();
        let (_, bytes) = segments.find(|(id, _)| *id == segment).unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
    }

    fn lengths(&self) -> Vec<(SegmentId, usize)> {
        self.log.segments().collect()
    }
}

/// Flips every bit of one segment, in a log with three segments.
fn flip_all(segment_bytes: usize, segment: usize) {
    let mut written = filled(segment_bytes, 3);
    let (id, bytes) = written.lengths()[segment];
    let bits = 0..bytes * 8;
    let noticed = bits.filter(|bit| is_noticed(&mut written, id, *bit));
    let noticed = noticed.count();
    assert!(noticed > 0, "no flip in segment {id} is noticed");
}

#[test]
fn every_flipped_bit_of_a_small_log_is_noticed_or_has_no_effect() {
    (0..3).for_each(|segment| flip_all(4096, segment));
}

// Three tests, because they run side by side.
#[test]
fn every_flipped_bit_in_the_first_of_three_segments_of_64_kib_is_noticed_or_has_no_effect() {
    flip_all(65536, 0);
}

#[test]
fn every_flipped_bit_in_the_second_of_three_segments_of_64_kib_is_noticed_or_has_no_effect() {
    flip_all(65536, 1);
}

#[test]
fn every_flipped_bit_in_the_last_of_three_segments_of_64_kib_is_noticed_or_has_no_effect() {
    flip_all(65536, 2);
}

#[test]
fn flipped_bits_of_a_large_log_are_noticed_or_have_no_effect() {
    let mut written = filled(2 << 20, 2);
    let lengths = written.lengths();
    let mut rng = Pcg64Mcg::seed_from_u64(1);
    let noticed = (0..3000).filter(|_| {
        let (id, bytes) = lengths[rng.random_range(0..lengths.len())];
        is_noticed(&mut written, id, rng.random_range(0..bytes * 8))
    });
    assert!(noticed.count() > 0);
}

/// The last group of a segment is damaged, and the next segment shows that this group was synced.
pub(super) fn a_damaged_group_is_followed_by_another_segment() {
    let mut written = filled(4096, 3);
    let (second, bytes) = written.lengths()[1];
    let mut segments = written.disk.segments_mut();
    let (_, data) = segments.find(|(id, _)| *id == second).unwrap();
    let last = (0..bytes).step_by(crate::ALIGNMENT).rev();
    let mut last = last.filter(|at| data[*at..].starts_with(b"LHG"));
    let at = last.next().unwrap();
    data[at..].fill(0);
    drop(segments);
    let marker_lost = Marked {
        group: 0,
        ..written.marked()
    };
    let found = written.disk.recover(LIFE, marker_lost, fixed(4096));
    let damage = found.expect_err("a group is missing");
    assert!(
        damage.problem.contains("the segments before it end"),
        "{damage}"
    );
}

#[test]
fn h117_a_segment_continues_the_one_before_it() {
    a_damaged_group_is_followed_by_another_segment();
}

/// A group in the middle of the last segment is damaged. The marker is older than this group,
/// because the machine lost its power. The groups behind the damaged one show that the damaged one
/// was synced.
pub(super) fn a_damaged_group_is_followed_by_groups_that_name_it_as_synced() {
    let mut written = Written::new(65536);
    let marked = written.marked();
    for slot in 1..10 {
        written.write(&[accepted(LogId::Commands, slot, 1, 10)]);
    }
    written.flip(SegmentId(1), (5 * crate::ALIGNMENT + 60) * 8);
    let found = written.disk.recover(LIFE, marked, fixed(65536));
    let damage = found.expect_err("a synced group is damaged");
    assert!(damage.problem.contains("was synced"), "{damage}");
}

#[test]
fn h117_damage_is_not_taken_for_a_torn_write() {
    a_damaged_group_is_followed_by_groups_that_name_it_as_synced();
}

#[test]
fn a_log_whose_end_is_cut_off_is_refused() {
    let mut written = filled(4096, 3);
    let lengths = written.lengths();
    let last = lengths.last().unwrap().0;
    let mut segments = written.disk.segments_mut();
    let (_, data) = segments.find(|(id, _)| *id == last).unwrap();
    data.truncate(0);
    drop(segments);
    let damage = written.recover().expect_err("the end is missing");
    assert!(damage.problem.contains("were acknowledged"), "{damage}");
}

#[test]
fn another_directorys_log_is_not_read() {
    let written = filled(4096, 3);
    let found = written
        .disk
        .recover(LIFE + 1, written.marked(), fixed(4096));
    assert!(found.is_err());
}
