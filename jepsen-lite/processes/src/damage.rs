//! Harm to the files of a node that does not run.

use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Flips so many bits in the files below a folder. Where, is up to the seed: each bit of all files is as likely
/// as any other, but of those that only pad the files out with zeros. Says how many were flipped.
///
/// # Errors
///
/// When files cannot be read or written.
pub fn flip_bits(folder: &Path, bits: u64, seed: u64) -> Result<u64> {
    let mut files = Vec::new();
    for path in files_below(folder)? {
        let mut bytes = Vec::new();
        let mut file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        file.read_to_end(&mut bytes)
            .with_context(|| format!("read {}", path.display()))?;
        // sled asks for room in large steps.
        let used = bytes
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |last| last + 1);
        if used > 0 {
            files.push((path, used as u64));
        }
    }
    let total: u64 = files.iter().map(|(_, used)| used).sum();
    if total == 0 {
        return Ok(0);
    }
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..bits {
        let mut at = rng.random_range(0..total);
        for (path, used) in &files {
            if at >= *used {
                at -= used;
                continue;
            }
            let file = OpenOptions::new().read(true).write(true).open(path);
            let file = file.with_context(|| format!("open {}", path.display()))?;
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).context("read a byte")?;
            byte[0] ^= 1 << rng.random_range(0..8);
            file.write_all_at(&byte, at).context("flip a bit")?;
            break;
        }
    }
    Ok(bits)
}

/// Cuts so many bytes from the end of what was written last: of the file with the latest time of change. Bytes
/// that only pad it out are not counted. Says how many were cut off.
///
/// # Errors
///
/// When files cannot be read or written.
pub fn truncate_newest(folder: &Path, bytes: u64) -> Result<u64> {
    let mut newest = None;
    for path in files_below(folder)? {
        let metadata = fs::metadata(&path).with_context(|| format!("look at {}", path.display()))?;
        let changed = metadata.modified().context("when a file was changed")?;
        if metadata.len() > 0 && newest.as_ref().is_none_or(|(at, _)| changed > *at) {
            newest = Some((changed, path));
        }
    }
    let Some((_, path)) = newest else {
        return Ok(0);
    };
    let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let used = content
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last as u64 + 1);
    let file = OpenOptions::new().write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    file.set_len(used.saturating_sub(bytes)).context("cut a file")?;
    Ok(bytes.min(used))
}

/// Puts a copy of a folder in place of another. Says how many bytes the copy has.
///
/// # Errors
///
/// When files cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<u64> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("empty {}", to.display()))?;
    }
    let mut bytes = 0;
    fs::create_dir_all(to).with_context(|| format!("make {}", to.display()))?;
    for path in files_below(from)? {
        let place = to.join(path.strip_prefix(from).context("a file below the folder")?);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        }
        bytes += fs::copy(&path, &place).with_context(|| format!("copy {}", path.display()))?;
    }
    Ok(bytes)
}

/// All files below a folder, in a fixed order.
fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let entry = entry.context("list a folder")?;
            if entry.file_type().context("what a file is")?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_flip_where_the_seed_says_and_copies_bring_them_back() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data");
        fs::create_dir_all(data.join("log"))?;
        fs::write(data.join("identity"), [7; 100])?;
        fs::write(data.join("log/db"), [[9; 300], [0; 300]].concat())?;
        let kept = folder.path().join("kept");
        assert_eq!(copy(&data, &kept)?, 700);
        let read = || -> Result<Vec<u8>> {
            Ok([fs::read(data.join("identity"))?, fs::read(data.join("log/db"))?].concat())
        };
        let before = read()?;
        assert_eq!(flip_bits(&data, 3, 1)?, 3);
        let once = read()?;
        let apart =
            |one: &[u8], two: &[u8]| -> u32 { one.iter().zip(two).map(|(a, b)| (a ^ b).count_ones()).sum() };
        assert_eq!(apart(&before, &once), 3);
        assert_eq!(once[400..], before[400..], "padding was harmed");
        copy(&kept, &data)?;
        assert_eq!(read()?, before);
        flip_bits(&data, 3, 1)?;
        assert_eq!(read()?, once, "the same seed flips other bits");
        Ok(())
    }

    #[test]
    fn the_newest_file_is_cut_at_its_written_end() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        fs::write(&old, [1; 50])?;
        let past = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
        File::options().write(true).open(&old)?.set_modified(past)?;
        fs::write(&new, [[2; 50], [0; 50]].concat())?;
        assert_eq!(truncate_newest(folder.path(), 20)?, 20);
        assert_eq!((fs::metadata(&old)?.len(), fs::metadata(&new)?.len()), (50, 30));
        Ok(())
    }
}
