//! Valid inputs for the entry points of [`super`], from which the fuzzer starts.

/// Seeds of [`super::rename_source`].
pub fn rename_source() -> Vec<Vec<u8>> {
    [
        "http://127.0.0.1:10004/acc/s/dir/file%20b.",
        "http://127.0.0.1:10004/acc/s/docs%2Fa%20b%2Fc?sv=1&sig=x",
        "http://acc.file.localhost/s/%C3%A9/my dir/{1}",
        "http://acc.file.localhost:10004/s/CONTROL .x/y..?comp=rename",
        "http://acc.file.core.windows.net/s/d/",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
