#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| lazuli_blob::fuzz::query_request(data));
