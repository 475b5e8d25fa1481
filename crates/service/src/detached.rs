//! Work that must run to its end if its client disconnects.

use lazuli_protocol::Refusal;
use lazuli_telemetry::in_current_trace;
use tracing::Instrument;

use crate::internal_error;

/// Runs `work` in a task of its own and waits for it. If the caller is dropped, the task continues. Its log
/// entries and its trace name the request that began it.
pub async fn run_to_completion<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::spawn(in_current_trace(work.in_current_span())).await;
    done.unwrap_or_else(|error| Err(internal_error(format_args!("detached work ended early: {error}"))))
}
