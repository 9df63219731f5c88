//! Compiles the `.proto` files with protox, so that no system `protoc` is needed.

use std::path::PathBuf;

use prost::Message as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = PathBuf::from("../../proto");
    println!("cargo:rerun-if-changed=../../proto");
    let public = ["quorate/v1/broker.proto", "quorate/v1/cluster.proto"];
    let internal = [
        "quorate/internal/v1/peer.proto",
        "quorate/internal/v1/content.proto",
        "quorate/internal/v1/forward.proto",
    ];
    let out = PathBuf::from(std::env::var("OUT_DIR")?);

    // Reflection shows the public API only.
    let described = protox::compile(public, [&root])?;
    std::fs::write(out.join("quorate_v1.bin"), described.encode_to_vec())?;

    let all = protox::compile(public.iter().chain(&internal), [&root])?;
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .compile_fds(all)?;
    Ok(())
}
