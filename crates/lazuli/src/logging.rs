//! Logging to stderr, one event per line, as text or JSON. Lines about single requests are in the access log.

mod deferred_spans;

use std::io::{IsTerminal, stderr};

use deferred_spans::DeferredSpans;
use lazuli_protocol::log_rate::REFUSAL_LOG;
use tracing::{Dispatch, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::Failure;
use crate::config::LogFormat;

/// Maximum number of lines queued for stderr. If the reader is too slow, lines are lost; requests never wait.
const WAITING_LINES: usize = 64 * 1024;

/// Starts logging. Dropping the guard flushes the waiting lines. Can be called once per process.
pub(crate) fn init(format: LogFormat, filter: &str) -> Result<WorkerGuard, Failure> {
    let builder = NonBlockingBuilder::default().buffered_lines_limit(WAITING_LINES).lossy(true);
    let (writer, guard) = builder.finish(stderr());
    dispatch(format, is_colored(), filter_with_refusals(filter)?, writer)
        .try_init()
        .map_err(Failure::failed)?;
    Ok(guard)
}

/// Returns whether text is colored: on a terminal, unless the variable `NO_COLOR` has a value.
fn is_colored() -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    stderr().is_terminal() && !is_set("NO_COLOR") && !is_dumb
}

/// Returns the filter of `--log-level`. Refusals and failed logins pass every filter, because they are the
/// traces of attacks.
fn filter_with_refusals(filter: &str) -> Result<EnvFilter, Failure> {
    let refusals = format!("{REFUSAL_LOG}=warn").parse().map_err(Failure::failed)?;
    // Events of the LSM library at INFO do not help operators.
    let filter =
        if filter.contains("lsm_tree") { filter.to_owned() } else { format!("{filter},lsm_tree=warn") };
    Ok(EnvFilter::try_new(filter).map_err(Failure::failed)?.add_directive(refusals))
}

/// Returns the subscriber. Both formats write the fields of an event's spans, which name its request.
fn dispatch<W>(format: LogFormat, is_colored: bool, filter: EnvFilter, writer: W) -> Dispatch
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let is_deferred = !deferred_spans::needs_spans(&filter);
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(is_colored);
    match format {
        LogFormat::Text => deferred(subscriber.finish(), is_deferred),
        // The list of spans includes the current one.
        LogFormat::Json => {
            deferred(subscriber.json().flatten_event(true).with_current_span(false).finish(), is_deferred)
        }
    }
}

fn deferred(subscriber: impl Subscriber + Send + Sync + 'static, is_deferred: bool) -> Dispatch {
    if is_deferred { Dispatch::new(DeferredSpans::new(subscriber)) } else { Dispatch::new(subscriber) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;

    #[test]
    fn both_formats_write_the_fields_of_the_request() {
        let line = |format, level| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let filter = filter_with_refusals(level).unwrap();
            let dispatch = dispatch(format, false, filter, Arc::new(file.reopen().unwrap()));
            tracing::dispatcher::with_default(&dispatch, || {
                let span = tracing::error_span!("request", request_id = 7, account = "lapis");
                span.in_scope(|| tracing::error!("a row is damaged"));
            });
            std::fs::read_to_string(file.path()).unwrap()
        };
        for level in ["error", "info"] {
            let text = line(LogFormat::Text, level);
            assert!(text.contains(r#"ERROR request{request_id=7 account="lapis"}: "#), "{level} {text}");
            let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json, level)).unwrap();
            assert_eq!(json["message"], "a row is damaged");
            let expected = serde_json::json!([{"name": "request", "request_id": 7, "account": "lapis"}]);
            assert_eq!(json["spans"], expected);
        }
    }

    #[test]
    fn filter_selects_events_by_the_span_that_they_are_in() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let filter = filter_with_refusals("error,[request{account=lapis}]=info").unwrap();
        let dispatch = dispatch(LogFormat::Text, false, filter, Arc::new(file.reopen().unwrap()));
        tracing::dispatcher::with_default(&dispatch, || {
            for account in ["lapis", "opal"] {
                let span = tracing::error_span!("request", account);
                span.in_scope(|| tracing::info!("an event of {account}"));
            }
        });
        let log = std::fs::read_to_string(file.path()).unwrap();
        assert!(log.contains("event of lapis") && !log.contains("event of opal"), "{log}");
    }

    #[test]
    fn refusals_are_logged_at_every_level_and_nothing_else_is_added() {
        for level in ["error", "off", "info,refused=off", "refused=error", "info"] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let filter = filter_with_refusals(level).unwrap();
            let dispatch = dispatch(LogFormat::Text, false, filter, Arc::new(file.reopen().unwrap()));
            tracing::dispatcher::with_default(&dispatch, || {
                tracing::warn!(target: REFUSAL_LOG, status = 403, "refused");
                tracing::info!(target: REFUSAL_LOG, "a detail");
                tracing::debug!("another detail");
            });
            let log = std::fs::read_to_string(file.path()).unwrap();
            assert!(log.contains("status=403") && !log.contains("detail"), "{level}: {log}");
        }
    }
}
