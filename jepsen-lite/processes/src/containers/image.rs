//! Images of a binary that is already built.
//!
//! The Dockerfile is the one that users build, `deploy/Dockerfile`; the binary goes in by its switch for that. A
//! registry is needed for the base image alone, and not where one is there under its name: `.ci/base-image` makes
//! a stand-in from Debian's packages.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::engine::{BUILD_LIMIT, Engine, run};

/// What `deploy/Dockerfile` runs on.
const BASE: &str = "debian:bookworm-slim";

/// Builds an image of `binary` under the name `tag`. `root` is the source tree.
///
/// # Errors
///
/// When there is no base image and none can be had, or the image cannot be built.
pub async fn build(engine: &Engine, root: &Path, binary: &Path, tag: &str) -> Result<()> {
    if engine.docker(&["image", "inspect", BASE]).await.is_err() {
        let script = root.join(".ci/base-image");
        let script = script.to_str().context("a path that is text")?;
        run(script, &[BASE], BUILD_LIMIT)
            .await
            .with_context(|| format!("there is no image {BASE}, and no stand-in could be made"))?;
    }
    // A context with nothing else: the whole tree would be sent to the engine.
    let context = tempfile::tempdir().context("make a folder for the image")?;
    let place = context.path().join("deploy/prebuilt");
    fs::create_dir_all(&place).context("make a folder for the image")?;
    let copy = place.join("quorate");
    fs::copy(binary, &copy).with_context(|| format!("copy {}", binary.display()))?;
    // Half of an unstripped binary is of use to a debugger only. Without `strip` the image is just larger.
    let _ = run(
        "strip",
        &["--strip-debug", copy.to_str().unwrap_or_default()],
        BUILD_LIMIT,
    )
    .await;
    let (dockerfile, context) = (root.join("deploy/Dockerfile"), context.path());
    let text = |path: &Path| path.to_str().map(str::to_owned).context("a path that is text");
    let base = format!("BUILD_IMAGE={BASE}");
    engine
        .build(&[
            "build",
            "--quiet",
            "--file",
            &text(&dockerfile)?,
            "--tag",
            tag,
            "--build-arg",
            "QUORATE_BUILD=prebuilt",
            "--build-arg",
            &base,
            &text(context)?,
        ])
        .await?;
    // The stage with the build is left without a name, and would stay for ever.
    let _ = engine
        .docker(&[
            "image",
            "prune",
            "--force",
            "--filter",
            "label=quorate.stage=build",
        ])
        .await;
    Ok(())
}

/// Gives an image a second name.
///
/// # Errors
///
/// When there is no such image.
pub async fn tag(engine: &Engine, image: &str, tag: &str) -> Result<()> {
    engine.docker(&["tag", image, tag]).await.map(|_| ())
}

/// Removes images of these names, as far as they are there and nothing runs on them.
pub async fn remove(engine: &Engine, tags: &[&str]) {
    for tag in tags {
        let _ = engine.docker(&["image", "rm", tag]).await;
    }
}
