//! Reports about single requests: the access log and traces.
//!
//! The front end and the SMB endpoint add the facts of each request. Request threads never wait: a queue
//! with a bound takes what they report, and a thread of its own writes it. What does not fit is counted.

mod access_log;
mod traces;

pub use access_log::line::{Line, LineFormat};
pub use access_log::{AccessLog, AccessLogFigures, AccessLogWriter, Destination, OpenError};
pub use traces::{
    Phase, RequestFacts, RequestTrace, RunningPhase, TraceContext, TraceFigures, Tracer, Value, begin_phase,
    in_current_trace,
};

/// The receivers of reports about requests. Without receivers, a request costs one comparison.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// The access log, if the server has one.
    pub access_log: Option<AccessLog>,
    /// The traces, if the server exports any.
    pub tracer: Option<Tracer>,
}
