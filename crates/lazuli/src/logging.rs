//! Logs: to stderr, for people or for programs, one event a line. Requests are events of the target `access`.

use std::io::stderr;

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::Failure;
use crate::config::LogFormat;

/// Lines that wait for stderr at most. A reader that is too slow loses lines; it never holds up a request.
const WAITING_LINES: usize = 64 * 1024;

/// Logs until the guard is dropped, which writes out what waits. Can be called once.
pub(crate) fn init(format: LogFormat, filter: &str) -> Result<WorkerGuard, Failure> {
    let filter = EnvFilter::try_new(filter).map_err(Failure::failed)?;
    let builder = NonBlockingBuilder::default().buffered_lines_limit(WAITING_LINES).lossy(true);
    let (writer, guard) = builder.finish(stderr());
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
    match format {
        LogFormat::Text => subscriber.try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(Failure::failed)?;
    Ok(guard)
}
