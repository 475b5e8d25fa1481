//! NTLMv2, the accepting side.
