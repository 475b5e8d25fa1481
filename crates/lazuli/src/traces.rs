//! Exports the traces of requests to a collector: OTLP over HTTP, in protobuf.
//!
//! A collector that is slow or down delays no request: traces wait in a queue with a bound, and those that do
//! not fit or are not accepted are counted and dropped.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{StatusCode, Uri};
use lazuli_outbound::{Allow, Outbound};
use lazuli_telemetry::Tracer;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::VERSION;

/// Interval of exports.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum time for one request to the collector.
const SEND_TIME: Duration = Duration::from_secs(10);
/// Number of attempts to send a batch, and the pause after the first failed one. It doubles each time.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum time for the last traces when the server stops.
const CLOSE_TIME: Duration = Duration::from_secs(3);
/// Minimum interval between two warnings about a collector.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Maximum length of a collector's reply.
const MAX_REPLY: usize = 64 << 10;

/// A running exporter.
pub(crate) struct TraceExporter {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Sends traces to one collector.
struct Collector {
    tracer: Tracer,
    outbound: Outbound,
    uri: Uri,
    /// Names this process among others of the service.
    instance: String,
    warned: Option<Instant>,
}

impl TraceExporter {
    /// Starts exporting. Must be called within a runtime.
    pub(crate) fn start(tracer: Tracer, uri: Uri) -> Self {
        let outbound = Outbound::new([Allow::Everything]);
        let instance = uuid::Uuid::new_v4().to_string();
        let mut collector = Collector { tracer, outbound, uri, instance, warned: None };
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = &mut stopped => break,
                    () = async { sleep(EVERY).await; collector.export(ATTEMPTS).await } => {}
                }
            }
            collector.export(1).await;
        });
        Self { stop, task }
    }

    /// Sends the last traces, for a limited time.
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        let abort = self.task.abort_handle();
        if timeout(CLOSE_TIME, self.task).await.is_err() {
            abort.abort();
        }
    }
}

impl Collector {
    /// Sends the waiting traces.
    async fn export(&mut self, attempts: u32) {
        let Some((count, body)) = self.tracer.take(&self.instance, VERSION) else { return };
        let body = Bytes::from(body);
        let mut result = Err(String::new());
        for attempt in 0..attempts {
            if attempt > 0 {
                sleep(PAUSE * (1 << (attempt - 1))).await;
            }
            result = self.send(&body).await;
            if result.is_ok() {
                break;
            }
        }
        self.tracer.sent(count, result.is_ok());
        if let Err(error) = result
            && self.warned.is_none_or(|warned| warned.elapsed() >= WARN_EVERY)
        {
            self.warned = Some(Instant::now());
            tracing::warn!(collector = %self.uri, count, error, "traces were lost");
        }
    }

    async fn send(&self, body: &Bytes) -> Result<(), String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let sent = async {
            let reply = self.outbound.post(&self.uri, headers, body.clone()).await?;
            let status = reply.status;
            reply.collect(MAX_REPLY).await.map(|_| status)
        };
        match timeout(SEND_TIME, sent).await {
            Ok(Ok(status)) if status.is_success() => Ok(()),
            Ok(Ok(status)) => Err(refused(status)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the collector did not answer in time".into()),
        }
    }
}

fn refused(status: StatusCode) -> String {
    format!("the collector answered {status}")
}
