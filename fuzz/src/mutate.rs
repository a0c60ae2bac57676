//! Inputs that are made from seeds by random changes, but are the same in every run. Bits are
//! flipped, ends are cut off, parts are repeated, parts of one seed are put into another, and
//! lengths are falsified.

use rand::{RngExt as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

/// Maximum length of an input.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// Maximum number of changes in one input. With more changes, a decoder would refuse nearly every
/// input.
const CHANGES_MAX: u32 = 4;

/// Boundary values for lengths and counts. They are inserted as varints, as big-endian or
/// little-endian bytes, or as decimal digits.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7F,
    0x80,
    0xFFFF,
    (4 << 20) - 1,
    4 << 20,
    (4 << 20) + 1,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 56,
    (1 << 56) + 1,
    i64::MAX as u64,
    u64::MAX,
];

/// Endless generator of inputs that are made from seeds.
#[derive(Debug)]
pub struct Mutator {
    seeds: Vec<Vec<u8>>,
    random: Pcg64Mcg,
}

impl Mutator {
    /// Creates a generator of inputs. `seeds` must not be empty; `seed` determines the random
    /// changes.
    pub fn new(seeds: Vec<Vec<u8>>, seed: u64) -> Mutator {
        Mutator {
            seeds,
            random: Pcg64Mcg::seed_from_u64(seed),
        }
    }

    /// Returns the next input.
    pub fn input(&mut self) -> Vec<u8> {
        let mut input = self.any_seed().to_vec();
        for _ in 0..self.random.random_range(1..=CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn any_seed(&mut self) -> &[u8] {
        let index = self.random.random_range(0..self.seeds.len());
        &self.seeds[index]
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        match self.random.random_range(0..9) {
            0 | 1 => self.flip(input),
            2 => input.truncate(self.place(input)),
            3 => self.splice(input),
            4 | 5 => self.edge(input),
            6 => self.repeat(input),
            7 => drop(input.drain(self.part(input))),
            _ => self.noise(input),
        }
    }

    /// Returns a random position in `input`. It may be the end of `input`.
    fn place(&mut self, input: &[u8]) -> usize {
        self.random.random_range(0..=input.len())
    }

    fn part(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let (a, b) = (self.place(input), self.place(input));
        let (from, to) = (a.min(b), a.max(b));
        // Short parts are more frequent: a length prefix, a field, a word.
        match self.random.random_range(0..3) {
            0 => from..to,
            _ => from..to.min(from + 8),
        }
    }

    fn flip(&mut self, input: &mut [u8]) {
        let at = self.place(input);
        let bit = self.random.random_range(0..8);
        if let Some(byte) = input.get_mut(at) {
            *byte ^= 1 << bit;
        }
    }

    fn splice(&mut self, input: &mut Vec<u8>) {
        let other = self.any_seed().to_vec();
        let taken = self.part(&other);
        let replaced = self.part(input);
        input.splice(replaced, other[taken].iter().copied());
    }

    /// Inserts one of the numbers in [`EDGES`], or overwrites bytes with this number.
    fn edge(&mut self, input: &mut Vec<u8>) {
        let edge = EDGES[self.random.random_range(0..EDGES.len())];
        let bytes: Vec<u8> = match self.random.random_range(0..6) {
            0 => (edge as u32).to_be_bytes().into(),
            1 => (edge as u32).to_le_bytes().into(),
            2 => edge.to_be_bytes().into(),
            3 => edge.to_string().into(),
            _ => varint(edge),
        };
        let at = self.place(input);
        let over = self.random.random_range(0..=bytes.len());
        let end = input.len().min(at + over);
        input.splice(at..end, bytes);
    }

    fn repeat(&mut self, input: &mut Vec<u8>) {
        let part = input[self.part(input)].to_vec();
        let at = self.place(input);
        let times = match self.random.random_range(0..20) {
            0 => 1000,
            _ => self.random.random_range(1..4),
        };
        let room = (INPUT_BYTES_MAX / part.len().max(1)).min(times);
        input.splice(at..at, part.repeat(room));
    }

    fn noise(&mut self, input: &mut Vec<u8>) {
        let bytes: [u8; 8] = self.random.random();
        let count = self.random.random_range(1..=bytes.len());
        let at = self.place(input);
        let over = self.random.random_range(0..=count);
        let end = input.len().min(at + over);
        input.splice(at..end, bytes[..count].iter().copied());
    }
}

fn varint(number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(number, &mut bytes);
    bytes
}
