//! Protocol decisions as pure state machines: values in, decisions out, no `async`.
