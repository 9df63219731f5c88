//! The gateway over one node of this process, asked over gRPC.

mod bad_input;
mod calls;
mod scene;
