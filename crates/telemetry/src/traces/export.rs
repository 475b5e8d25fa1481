//! Spans as an OTLP request in protobuf. The numbers of fields are those of `opentelemetry/proto/trace/v1`,
//! version 1, which is stable.

use std::time::{Duration, UNIX_EPOCH};

use prost::Message;

use super::{FinishedRequest, Phase, PhaseSpan, SERVICE_NAME, Value};

/// AttributeKind of a span within a request.
const INTERNAL: i32 = 1;
/// AttributeKind of the span of a request.
const SERVER: i32 = 2;
/// Status of a request that failed.
const ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct TraceRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_nanos: u64,
    #[prost(fixed64, tag = "8")]
    end_nanos: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<SpanStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct SpanStatus {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "AttributeKind", tags = "1, 3")]
    kind: Option<AttributeKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum AttributeKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

/// Encodes requests of this instance of the server.
pub(super) fn encode(requests: &[FinishedRequest], instance: &str, version: &str) -> Vec<u8> {
    let attributes =
        [("service.name", SERVICE_NAME), ("service.version", version), ("service.instance.id", instance)];
    let resource = Resource {
        attributes: attributes.map(|(key, value)| attribute(key, &Value::Text(value.to_owned()))).into(),
    };
    let scope = Scope { name: SERVICE_NAME.into(), version: version.into() };
    let spans = requests.iter().flat_map(FinishedRequest::spans).collect();
    let scopes = vec![ScopeSpans { scope: Some(scope), spans }];
    TraceRequest { resources: vec![ResourceSpans { resource: Some(resource), scopes }] }.encode_to_vec()
}

fn attribute(key: &str, value: &Value) -> KeyValue {
    let kind = match value {
        Value::Text(text) => AttributeKind::Text(text.clone()),
        Value::Number(number) => AttributeKind::Number(i64::try_from(*number).unwrap_or(i64::MAX)),
    };
    KeyValue { key: key.into(), value: Some(AnyValue { kind: Some(kind) }) }
}

impl FinishedRequest {
    /// Returns the span of the request, then those of its phases.
    fn spans(&self) -> Vec<Span> {
        let (trace, facts) = (&self.trace, &self.facts);
        let since_epoch = trace.started.duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = |offset: Duration| u64::try_from((since_epoch + offset).as_nanos()).unwrap_or(u64::MAX);
        let id = |number: u64| number.to_be_bytes().to_vec();
        let state = trace.context.state.as_deref().unwrap_or_default();
        let request = Span {
            trace_id: trace.context.trace.to_vec(),
            span_id: id(trace.span),
            trace_state: state.to_owned(),
            parent_span_id: trace.context.parent.map(id).unwrap_or_default(),
            name: facts.name.into(),
            kind: SERVER,
            start_nanos: at(Duration::ZERO),
            end_nanos: at(facts.elapsed),
            attributes: facts.attributes.iter().map(|(key, value)| attribute(key, value)).collect(),
            status: facts.has_failed.then_some(SpanStatus { code: ERROR }),
        };
        let phases = self.phases();
        let is_evaluation = |(_, span): &(u64, PhaseSpan)| span.phase == Phase::Evaluate;
        let numbered = || (1..).zip(phases.iter().copied());
        let evaluation = numbered().find(is_evaluation).map(|(number, _)| number);
        let phase = |(number, span): (u64, PhaseSpan)| {
            let parent = evaluation.filter(|_| span.phase == Phase::Commit).unwrap_or(0);
            Span {
                trace_id: request.trace_id.clone(),
                span_id: id(self.span_of(number)),
                trace_state: state.to_owned(),
                parent_span_id: id(self.span_of(parent)),
                name: span.phase.name().into(),
                kind: INTERNAL,
                start_nanos: at(span.from),
                end_nanos: at(span.to),
                ..Span::default()
            }
        };
        let phases: Vec<_> = numbered().map(phase).collect();
        std::iter::once(request).chain(phases).collect()
    }

    /// Returns the span id of a phase; 0 is the request itself.
    fn span_of(&self, phase: u64) -> u64 {
        // Skips 0, which is not a valid id.
        let id = self.trace.span.wrapping_add(phase);
        if id < self.trace.span { id + 1 } else { id }
    }

    /// Returns all phases: those that were measured, and those between them.
    fn phases(&self) -> Vec<PhaseSpan> {
        let mut phases = self.trace.phases.lock().clone();
        let evaluation = phases.iter().find(|span| span.phase == Phase::Evaluate);
        if let Some(evaluation) = evaluation {
            phases.push(PhaseSpan { phase: Phase::Wait, from: Duration::ZERO, to: evaluation.from });
        }
        if let Some(from) = self.facts.first_byte {
            phases.push(PhaseSpan { phase: Phase::Send, from, to: self.facts.elapsed });
        }
        phases
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::{RequestFacts, RunningPhase, TraceContext, Tracer};
    use super::*;

    #[test]
    fn spans_have_the_callers_trace_and_phases_their_request_as_parent() {
        let tracer = Tracer::new(1.0);
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let trace = tracer.begin([0xff; 16], TraceContext::parse(header, Some("a=1"))).unwrap();
        let evaluation = RunningPhase::begin(&trace, Phase::Evaluate);
        drop(RunningPhase::begin(&trace, Phase::Commit));
        drop(evaluation);
        let attributes = vec![("http.response.status_code", Value::Number(201))];
        let elapsed = Duration::from_secs(1);
        let first_byte = Some(Duration::from_millis(900));
        tracer.finish(
            trace,
            RequestFacts { name: "Put Blob", attributes, has_failed: true, first_byte, elapsed },
        );
        let (count, bytes) = tracer.take("host", "1.2.3").unwrap();
        let decoded = TraceRequest::decode(&bytes[..]).unwrap();
        let scope = &decoded.resources[0].scopes[0];
        let spans = &scope.spans;
        assert_eq!((count, scope.scope.as_ref().unwrap().version.as_str()), (1, "1.2.3"));
        let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
        assert_eq!(names, ["Put Blob", "commit", "evaluate", "wait", "send"]);
        let [request, commit, evaluation, wait, send] = &spans[..] else { panic!("{names:?}") };
        assert_eq!(request.parent_span_id, 0xb7ad_6b71_6920_3331_u64.to_be_bytes());
        assert_eq!((request.kind, request.status.as_ref().unwrap().code), (SERVER, ERROR));
        assert_eq!(request.end_nanos - request.start_nanos, 1_000_000_000);
        assert_eq!(commit.parent_span_id, evaluation.span_id);
        for span in [evaluation, wait, send] {
            assert_eq!(span.parent_span_id, request.span_id, "{}", span.name);
        }
        let ids: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
        assert!(ids.len() == 5 && !ids.contains(&vec![0; 8]), "{ids:?}");
        assert!(spans.iter().all(|span| span.trace_id == request.trace_id && span.trace_state == "a=1"));
        assert_eq!(request.trace_id[..2], [0x0a, 0xf7]);
    }
}
