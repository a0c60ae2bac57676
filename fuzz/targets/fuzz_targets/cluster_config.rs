#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| (leasehold_fuzz::target("cluster_config").body)(input));
