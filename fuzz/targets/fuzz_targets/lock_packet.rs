#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| (leasehold_fuzz::target("lock_packet").body)(input));
