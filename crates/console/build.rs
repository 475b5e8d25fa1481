//! Embeds the files of `web/`: each as it is and compressed, below a path that names the digest of all.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{Context, SHA256};

/// The text in `index.html` that stands for the digest.
const BUILD: &str = "__BUILD__";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=web");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?);
    let root = Path::new("web");
    let mut files = vec![];
    list(root, &mut files)?;
    files.sort();
    let mut digest = Context::new(&SHA256);
    for file in &files {
        digest.update(file.to_string_lossy().as_bytes());
        digest.update(&fs::read(file)?);
    }
    let build: String = digest.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let mut code =
        format!("pub(crate) const BUILD: &str = {build:?};\npub(crate) static ASSETS: &[Asset] = &[\n");
    for (number, file) in files.iter().enumerate() {
        let path = file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        let mut content = fs::read(file)?;
        if path == "index.html" {
            content = String::from_utf8_lossy(&content).replace(BUILD, &build).into_bytes();
        }
        let mut gzip = GzEncoder::new(vec![], Compression::best());
        gzip.write_all(&content)?;
        fs::write(out.join(format!("{number}.plain")), &content)?;
        fs::write(out.join(format!("{number}.gz")), gzip.finish()?)?;
        let bytes = |kind: &str| format!("include_bytes!(concat!(env!(\"OUT_DIR\"), \"/{number}.{kind}\"))");
        let (plain, gzip) = (bytes("plain"), bytes("gz"));
        writeln!(code, "    Asset {{ path: {path:?}, plain: {plain}, gzip: {gzip} }},")
            .map_err(io::Error::other)?;
    }
    code.push_str("];\n");
    fs::write(out.join("assets.rs"), code)
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            println!("cargo::rerun-if-changed={}", path.display());
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
