//! Every parser that reads what a client sent, by name, with valid inputs. The fuzzer and the replay of its
//! corpora share this list.

use lazuli_auth::fuzz as auth;
use lazuli_blob::fuzz as blob;
use lazuli_extents::fuzz as extents;
use lazuli_file::fuzz as file;
use lazuli_generations::fuzz as generations;
use lazuli_protocol::fuzz as protocol;
use lazuli_query::fuzz as query;
use lazuli_queue::fuzz as queue;
use lazuli_smb::fuzz as smb;
use lazuli_table::fuzz as table;

/// A function that must take any bytes without a panic. Returns whether the bytes are valid.
pub(crate) type Parser = fn(&[u8]) -> bool;

/// A function that returns valid inputs.
pub(crate) type Seeds = fn() -> Vec<Vec<u8>>;

pub(crate) const PARSERS: &[(&str, Parser, Seeds)] = &[
    ("auth_authorization_header", auth::authorization_header, auth::seeds::authorization_header),
    ("auth_jwt", auth::jwt, auth::seeds::jwt),
    ("auth_key_info", auth::key_info, auth::seeds::key_info),
    ("auth_sas_query", auth::sas_query, auth::seeds::sas_query),
    ("blob_batch", blob::batch, blob::seeds::batch),
    ("blob_block_list", blob::block_list, blob::seeds::block_list),
    ("blob_copy_source", blob::copy_source, blob::seeds::copy_source),
    ("blob_marker", blob::marker, blob::seeds::marker),
    ("blob_previous_snapshot_url", blob::previous_snapshot_url, blob::seeds::previous_snapshot_url),
    ("blob_query_request", blob::query_request, blob::seeds::query_request),
    ("blob_tag_query", blob::tag_query, blob::seeds::tag_query),
    ("blob_tags", blob::tags, blob::seeds::tags),
    ("extents_decode", extents::decode, extents::seeds::decode),
    ("file_rename_source", file::rename_source, file::seeds::rename_source),
    ("generations_marker", generations::marker, generations::seeds::marker),
    ("protocol_address", protocol::address, protocol::seeds::address),
    ("protocol_dates", protocol::dates, protocol::seeds::dates),
    ("protocol_metadata", protocol::metadata, protocol::seeds::metadata),
    ("protocol_proxies", protocol::proxies, protocol::seeds::proxies),
    ("protocol_query", protocol::query, protocol::seeds::query),
    ("protocol_range", protocol::range, protocol::seeds::range),
    ("protocol_signed_identifiers", protocol::signed_identifiers, protocol::seeds::signed_identifiers),
    ("protocol_structured", protocol::structured, protocol::seeds::structured),
    ("protocol_version", protocol::version, protocol::seeds::version),
    (
        "protocol_xml_service_properties",
        protocol::xml_service_properties,
        protocol::seeds::xml_service_properties,
    ),
    ("query_blob", query::blob, query::seeds::blob),
    ("query_statement", query::statement, query::seeds::statement),
    ("queue_message", queue::message, queue::seeds::message),
    ("queue_receipt", queue::receipt, queue::seeds::receipt),
    ("smb_frame", smb::frame, smb::seeds::frame),
    ("smb_ntlm", smb::ntlm, smb::seeds::ntlm),
    ("smb_request", smb::request, smb::seeds::request),
    ("smb_rpc", smb::rpc, smb::seeds::rpc),
    ("smb_security", smb::security, smb::seeds::security),
    ("smb_spnego", smb::spnego, smb::seeds::spnego),
    ("table_address", table::address, table::seeds::address),
    ("table_batch", table::batch, table::seeds::batch),
    ("table_entity", table::entity, table::seeds::entity),
    ("table_filter", table::filter, table::seeds::filter),
    ("table_query", table::query, table::seeds::query),
];
