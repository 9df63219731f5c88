//! The file that says where a node listens.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;

/// What the file holds, as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Ready {
    pub(crate) pid: u32,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) http: SocketAddr,
}

impl Ready {
    /// Whoever finds the file finds all of it: it gets its name when it is whole.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        fs::write(&part, json)?;
        fs::rename(&part, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_json_and_leaves_nothing_beside_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("node.ready");
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let ready = Ready {
            pid: 7,
            client: address(1),
            peer: address(2),
            http: address(3),
        };
        ready.write(&path).expect("a writable directory");
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(&path).expect("written")).expect("JSON");
        assert_eq!(json["peer"], "127.0.0.1:2");
        assert_eq!(fs::read_dir(directory.path()).expect("it exists").count(), 1);
    }
}
