//! `lazuli export` and `lazuli import stream`: all rows and content as one stream, independent of the engine
//! and the format of the data directory.

mod azure;
mod azurite;
mod export;
mod import;
mod import_server;
mod stream;

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount};

use crate::Failure;
use crate::backup::source::BackupSource;
use crate::sealing::{IdentityArgs, RecipientArgs, Recipients};
pub(crate) use export::Export;
pub(crate) use import::StreamContents;
use stream::Counts;
pub(crate) use stream::StreamReader;

#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The data directory, of a running or stopped server
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// The file to write, or - for standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    out: PathBuf,
    /// Read everything, but write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    recipients: RecipientArgs,
}

#[derive(Args)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Subcommand)]
enum From {
    /// Create a new data directory from the output of lazuli export
    Stream {
        /// The file to read, or - for standard input
        #[arg(value_name = "FILE", default_value = "-")]
        file: PathBuf,
        /// The new data directory, which must not exist or must be empty
        #[arg(long, value_name = "DIR")]
        into: PathBuf,
        /// Verify the stream, but write nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        identities: IdentityArgs,
    },
    /// Import the folder of a stopped Azurite: blobs, queues and tables
    ///
    /// Exits with 1 if anything was left out, and lists it. ETags, times and identifiers of snapshots and
    /// messages are new. The data directory may have data already; objects with the same names are replaced.
    Azurite {
        /// The folder of Azurite (its --location)
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The data directory; no server may be running on it
        #[arg(long, value_name = "DATA")]
        into: PathBuf,
        /// Count what would be imported, but import nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Import an account of a running store: the cloud, Azurite or another Lazuli
    ///
    /// Copies blobs, queues, tables and shares, and reads back what it wrote. Exits with 1 if anything was
    /// left out, and lists it. Can be interrupted and repeated: objects that are equal already are not copied
    /// again, and objects with the same names are replaced. The source is not changed.
    Azure(azure::AzureArgs),
}

/// Exports a data directory.
pub(crate) fn run_export(args: &ExportArgs) -> Result<(), Failure> {
    let recipients = args.recipients.load()?;
    let source = BackupSource::open(&args.data)?;
    let counts = if args.dry_run {
        let counts = export::export(&source.dir, &mut io::sink())?;
        source.finish()?;
        counts
    } else if args.out == Path::new("-") {
        write(io::stdout().lock(), recipients.as_ref(), source)?
    } else {
        to_file(&args.out, recipients.as_ref(), source)?
    };
    eprintln!("exported {}", describe(counts));
    Ok(())
}

/// Writes the stream, encrypted if there are recipients. The end, without which no import accepts the stream,
/// is written only if the snapshot was kept until then.
fn write(out: impl Write, recipients: Option<&Recipients>, source: BackupSource) -> Result<Counts, Failure> {
    let mut out = BufWriter::new(out);
    let dir = source.dir.clone();
    let Some(recipients) = recipients else {
        let counts = export::export_then(&dir, &mut out, || source.finish())?;
        out.flush().map_err(Failure::failed)?;
        return Ok(counts);
    };
    let mut sealed = recipients.seal(out).map_err(Failure::failed)?;
    let counts = export::export_then(&dir, &mut sealed, || source.finish())?;
    sealed.finish().and_then(|mut out| out.flush()).map_err(Failure::failed)?;
    Ok(counts)
}

/// Writes a file that gets its name only when complete.
fn to_file(path: &Path, recipients: Option<&Recipients>, source: BackupSource) -> Result<Counts, Failure> {
    let failed = |error: io::Error| Failure::Failed(format!("{}: {error}", path.display()));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let counts = write(file.as_file_mut(), recipients, source)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(counts)
}

/// Imports a stream or a folder of Azurite.
pub(crate) fn run_import(args: ImportArgs) -> Result<(), Failure> {
    let (file, into, dry_run, identities) = match args.from {
        From::Stream { file, into, dry_run, identities } => (file, into, dry_run, identities),
        From::Azurite { folder, into, dry_run } => return azurite::import(&folder, &into, dry_run),
        From::Azure(args) => return azure::import(args),
    };
    let identities = identities.load()?;
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let opened = File::open(&file);
        Box::new(opened.map_err(|error| Failure::Failed(format!("{}: {error}", file.display())))?)
    };
    let input = BufReader::with_capacity(1 << 20, input);
    let input: Box<dyn Read> = match &identities {
        Some(identities) => Box::new(identities.open(input).map_err(Failure::failed)?),
        None => Box::new(input),
    };
    let counts = if dry_run { import::verify(input)? } else { import::import(input, &into)? };
    println!("{} {}", if dry_run { "the stream is complete:" } else { "imported" }, describe(counts));
    Ok(())
}

fn describe(counts: Counts) -> String {
    format!("{} rows, {} of content", HumanCount(counts.rows), HumanBytes(counts.bytes))
}
