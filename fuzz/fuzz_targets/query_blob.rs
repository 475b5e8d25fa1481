#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| lazuli_query::fuzz::blob(data));
