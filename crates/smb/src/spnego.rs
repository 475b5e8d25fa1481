//! SPNEGO, the accepting side: the tokens around NTLM.
