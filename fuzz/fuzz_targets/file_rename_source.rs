#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| lazuli_file::fuzz::rename_source(data));
