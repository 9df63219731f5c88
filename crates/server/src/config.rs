//! Settings of `quorate serve`: flags, then `QUORATE_*`, then the file, then
//! defaults.
//!
//! [`Settings`] is the one list of what can be set. Clap fills it from flags and
//! the environment, TOML fills it from the file, [`Settings::or`] lays one over
//! the other, and [`Config`] is what is left when every value is known and has
//! been checked.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use quorate_load::Size;
use quorate_node::audit::{Audit, AuditFile};
use serde::{Deserialize, Serialize};

use crate::exit::Fatal;
use crate::span::Span;
use crate::telemetry::LogFormat;

/// Below, so few chunks are kept that most of what is asked for is gone.
const JOURNAL_BYTES_MIN: u64 = 1 << 20;

/// Arguments of `quorate serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Read settings from this TOML file; its keys are the names of the flags
    #[arg(long, env = "QUORATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the settings as they would be used, as TOML, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
    /// End when this process ends, which must be the parent
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) die_with_parent: Option<u32>,
    #[command(flatten)]
    settings: Settings,
}

/// Everything that can be set. Unset means: ask the next source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Settings {
    /// Name of the node in status and logs [default: the host's name]
    #[arg(long, env = "QUORATE_NAME", hide_env_values = true)]
    name: Option<String>,
    /// Directory for everything the node keeps [default: quorate-data]
    #[arg(long, env = "QUORATE_DATA", hide_env_values = true, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Address of all listeners. There is no authentication yet: open it to
    /// networks you trust [default: 127.0.0.1]
    #[arg(long, env = "QUORATE_BIND", hide_env_values = true, value_name = "ADDR")]
    bind: Option<IpAddr>,
    /// Port for clients; 0 picks one [default: 7400]
    #[arg(
        long,
        env = "QUORATE_CLIENT_PORT",
        hide_env_values = true,
        value_name = "PORT"
    )]
    client_port: Option<u16>,
    /// Port for the other nodes; 0 picks one [default: 7401]
    #[arg(long, env = "QUORATE_PEER_PORT", hide_env_values = true, value_name = "PORT")]
    peer_port: Option<u16>,
    /// Port for health and metrics; 0 picks one [default: 7480]
    #[arg(long, env = "QUORATE_HTTP_PORT", hide_env_values = true, value_name = "PORT")]
    http_port: Option<u16>,

    /// Host by which others reach this node [default: the bind address, or the
    /// host's name if that is 0.0.0.0 or ::]
    #[arg(
        long,
        env = "QUORATE_ADVERTISE_HOST",
        hide_env_values = true,
        value_name = "HOST"
    )]
    advertise_host: Option<String>,
    /// Where clients reach this node [default: the advertised host, client port]
    #[arg(
        long,
        env = "QUORATE_ADVERTISE_CLIENT",
        hide_env_values = true,
        value_name = "HOST:PORT"
    )]
    advertise_client: Option<String>,
    /// Where other nodes reach this node [default: the advertised host, peer port]
    #[arg(
        long,
        env = "QUORATE_ADVERTISE_PEER",
        hide_env_values = true,
        value_name = "HOST:PORT"
    )]
    advertise_peer: Option<String>,

    /// Peer addresses of all first members, this node included, the same list on
    /// each of them: a:7401,b:7401,c:7401. Only a node without data looks at it;
    /// without it such a node waits to be added to a cluster
    #[arg(
        long,
        env = "QUORATE_PEERS",
        hide_env_values = true,
        value_name = "HOST:PORT,…",
        value_delimiter = ','
    )]
    peers: Option<Vec<String>>,
    /// Dial another address than a peer advertises, for address translation
    #[arg(
        long,
        env = "QUORATE_PEER_DIAL",
        hide_env_values = true,
        value_name = "ADVERTISED=DIALLED,…",
        value_delimiter = ','
    )]
    peer_dial: Option<Vec<DialRule>>,

    /// Between two heartbeats of a leader [default: 125ms]
    #[arg(
        long,
        env = "QUORATE_HEARTBEAT",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    heartbeat: Option<Span>,
    /// Shortest time without a leader after which a node campaigns [default: 250ms]
    #[arg(
        long,
        env = "QUORATE_ELECTION_TIMEOUT_MIN",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    election_timeout_min: Option<Span>,
    /// Longest such time, and the lease of a leader [default: 400ms]
    #[arg(
        long,
        env = "QUORATE_ELECTION_TIMEOUT_MAX",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    election_timeout_max: Option<Span>,
    /// Leases held through a node that is not heard of end after this [default: 10s]
    #[arg(
        long,
        env = "QUORATE_NODE_DOWN_AFTER",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    node_down_after: Option<Span>,
    /// A snapshot is taken when the log since the last one is larger than this
    /// and than that snapshot [default: 64MiB]
    #[arg(
        long,
        env = "QUORATE_SNAPSHOT_LOG_BYTES",
        hide_env_values = true,
        value_name = "SIZE"
    )]
    snapshot_log_bytes: Option<Size>,
    /// Log kept behind a snapshot for followers that were away [default: 64MiB]
    #[arg(
        long,
        env = "QUORATE_LOG_KEEP_BYTES",
        hide_env_values = true,
        value_name = "SIZE"
    )]
    log_keep_bytes: Option<Size>,
    /// Most bytes of the journal, in which `trace` looks: 0, which is none, or at
    /// least 1MiB; the oldest goes first [default: 256MiB]
    #[arg(
        long,
        env = "QUORATE_JOURNAL_BYTES",
        hide_env_values = true,
        value_name = "SIZE"
    )]
    journal_bytes: Option<Size>,
    /// What happened longer ago goes from the journal [default: 7days]
    #[arg(
        long,
        env = "QUORATE_JOURNAL_AGE",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    journal_age: Option<Span>,

    /// After SIGTERM, time for handing over and letting calls finish [default: 20s]
    #[arg(
        long,
        env = "QUORATE_DRAIN_TIMEOUT",
        hide_env_values = true,
        value_name = "DURATION"
    )]
    drain_timeout: Option<Span>,
    /// Write what is applied to this file, as JSON lines, for fault injection: see
    /// docs/audit-log.md [default: none]
    #[arg(
        long,
        env = "QUORATE_AUDIT_FILE",
        hide_env_values = true,
        value_name = "FILE",
        hide = true
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    audit_file: Option<PathBuf>,
    /// Write the bound addresses to this file, as JSON, once all are bound
    #[arg(long, env = "QUORATE_READY_FILE", hide_env_values = true, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    ready_file: Option<PathBuf>,
    /// What to log: a level, or a filter such as info,quorate_raft=debug
    /// [default: $RUST_LOG, or info]
    #[arg(long, env = "QUORATE_LOG", hide_env_values = true, value_name = "FILTER")]
    log: Option<String>,
    /// Who reads the log [default: human]
    #[arg(
        long,
        env = "QUORATE_LOG_FORMAT",
        hide_env_values = true,
        value_name = "FORMAT"
    )]
    log_format: Option<LogFormat>,
}

/// Dial another address than a peer advertises: `advertised=dialled`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct DialRule {
    advertised: String,
    dialled: String,
}

impl FromStr for DialRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rule = text
            .split_once('=')
            .map(|(advertised, dialled)| (advertised.trim(), dialled.trim()));
        match rule {
            Some((advertised, dialled)) if is_host_port(advertised) && is_host_port(dialled) => Ok(Self {
                advertised: advertised.to_owned(),
                dialled: dialled.to_owned(),
            }),
            _ => Err(format!("`{text}` is not of the form host:port=host:port")),
        }
    }
}

impl fmt::Display for DialRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.advertised, self.dialled)
    }
}

impl TryFrom<String> for DialRule {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<DialRule> for String {
    fn from(rule: DialRule) -> Self {
        rule.to_string()
    }
}

impl ServeArgs {
    /// Reads the file, fills in defaults, and checks what came out.
    pub(crate) fn load(self) -> Result<Config, Fatal> {
        let file = match &self.config {
            Some(path) => Settings::from_file(path)?,
            None => Settings::default(),
        };
        Config::new(self.settings.or(file).or(Settings::defaults()))
    }
}

impl Settings {
    fn from_file(path: &Path) -> Result<Self, Fatal> {
        let text = fs::read_to_string(path)
            .map_err(|error| Fatal::usage(format!("configuration file {}: {error}", path.display())))?;
        Self::from_toml(&text).map_err(|problem| Fatal::usage(format!("{}: {problem}", path.display())))
    }

    /// The error names the line and the key.
    fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error
                .span()
                .map(|span| text[..span.start].matches('\n').count() + 1);
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{line}{}", error.message())
        })
    }

    /// These settings, and where one is unset, that of `other`.
    fn or(self, other: Self) -> Self {
        // Every field is named, so that a new one cannot be forgotten.
        Self {
            name: self.name.or(other.name),
            data: self.data.or(other.data),
            bind: self.bind.or(other.bind),
            client_port: self.client_port.or(other.client_port),
            peer_port: self.peer_port.or(other.peer_port),
            http_port: self.http_port.or(other.http_port),
            advertise_host: self.advertise_host.or(other.advertise_host),
            advertise_client: self.advertise_client.or(other.advertise_client),
            advertise_peer: self.advertise_peer.or(other.advertise_peer),
            peers: self.peers.or(other.peers),
            peer_dial: self.peer_dial.or(other.peer_dial),
            heartbeat: self.heartbeat.or(other.heartbeat),
            election_timeout_min: self.election_timeout_min.or(other.election_timeout_min),
            election_timeout_max: self.election_timeout_max.or(other.election_timeout_max),
            node_down_after: self.node_down_after.or(other.node_down_after),
            snapshot_log_bytes: self.snapshot_log_bytes.or(other.snapshot_log_bytes),
            log_keep_bytes: self.log_keep_bytes.or(other.log_keep_bytes),
            journal_bytes: self.journal_bytes.or(other.journal_bytes),
            journal_age: self.journal_age.or(other.journal_age),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            audit_file: self.audit_file.or(other.audit_file),
            ready_file: self.ready_file.or(other.ready_file),
            log: self.log.or(other.log),
            log_format: self.log_format.or(other.log_format),
        }
    }

    /// What the help texts above promise. The advertised addresses follow from
    /// the others, and the audit and ready files have none.
    fn defaults() -> Self {
        let node = quorate_node::Config::default();
        Self {
            name: Some(host_name()),
            data: Some(PathBuf::from("quorate-data")),
            bind: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            client_port: Some(7400),
            peer_port: Some(7401),
            http_port: Some(7480),
            advertise_host: None,
            advertise_client: None,
            advertise_peer: None,
            peers: Some(Vec::new()),
            peer_dial: Some(Vec::new()),
            heartbeat: Some(Span(node.heartbeat)),
            election_timeout_min: Some(Span(node.election_timeout_min)),
            election_timeout_max: Some(Span(node.election_timeout_max)),
            node_down_after: Some(Span(node.node_down_after)),
            snapshot_log_bytes: Some(Size(node.snapshot_log_bytes)),
            log_keep_bytes: Some(Size(node.log_keep_bytes)),
            journal_bytes: Some(Size(node.journal_bytes)),
            journal_age: Some(Span(node.journal_age)),
            drain_timeout: Some(Span(Duration::from_secs(20))),
            audit_file: None,
            ready_file: None,
            log: Some(std::env::var("RUST_LOG").unwrap_or_else(|_| "info".to_owned())),
            log_format: Some(LogFormat::Human),
        }
    }
}

/// Settings with every value known and checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// As they can be read again from a file.
    settings: Settings,
    pub(crate) bind: IpAddr,
    pub(crate) client_port: u16,
    pub(crate) http_port: u16,
    pub(crate) drain_timeout: Duration,
    pub(crate) ready_file: Option<PathBuf>,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    advertise_host: String,
    advertise_client: Option<String>,
    node: quorate_node::Config,
}

impl Config {
    fn new(settings: Settings) -> Result<Self, Fatal> {
        let bind = known(settings.bind, "bind")?;
        let peer_port = known(settings.peer_port, "peer-port")?;
        let peers = known(settings.peers.clone(), "peers")?;
        let peer_dial = known(settings.peer_dial.clone(), "peer-dial")?;
        let heartbeat = known(settings.heartbeat, "heartbeat")?.0;
        let election_timeout_min = known(settings.election_timeout_min, "election-timeout-min")?.0;
        let election_timeout_max = known(settings.election_timeout_max, "election-timeout-max")?.0;

        let advertise_host = settings.advertise_host.clone().unwrap_or_else(|| {
            if bind.is_unspecified() {
                host_name()
            } else {
                SocketAddr::new(bind, 0).ip().to_string()
            }
        });
        let advertise_peer = match &settings.advertise_peer {
            Some(address) => Some(address.clone()),
            None if peer_port > 0 => Some(host_port(&advertise_host, peer_port)),
            // The node knows the port when it has it.
            None if !bind.is_unspecified() => None,
            None => {
                return refuse(
                    "peer-port",
                    "0 needs advertise-peer, or bind with the address of one interface",
                );
            }
        };
        for (key, address) in [
            ("advertise-client", &settings.advertise_client),
            ("advertise-peer", &settings.advertise_peer),
        ] {
            if let Some(address) = address.as_ref().filter(|address| !is_host_port(address)) {
                return refuse(key, format!("`{address}` is not of the form host:port"));
            }
        }
        for (number, peer) in peers.iter().enumerate() {
            if !is_host_port(peer) {
                return refuse("peers", format!("`{peer}` is not of the form host:port"));
            }
            if peers[..number].contains(peer) {
                return refuse("peers", format!("{peer} is listed twice"));
            }
            if bind.is_loopback()
                && !is_loopback(peer)
                && advertise_peer.as_ref() != Some(peer)
                && peer_dial.is_empty()
            {
                return refuse(
                    "bind",
                    format!(
                        "{bind} cannot be reached by {peer}; set bind = \"0.0.0.0\" (or an address of this machine)"
                    ),
                );
            }
        }
        if heartbeat.is_zero() || election_timeout_min < heartbeat * 2 {
            return refuse(
                "election-timeout-min",
                "must be at least twice the heartbeat, which must not be zero",
            );
        }
        if election_timeout_max <= election_timeout_min {
            return refuse("election-timeout-max", "must be larger than election-timeout-min");
        }

        let journal_bytes = known(settings.journal_bytes, "journal-bytes")?.0;
        if (1..JOURNAL_BYTES_MIN).contains(&journal_bytes) {
            return refuse("journal-bytes", "must be 0, for none, or at least 1MiB");
        }

        let node = quorate_node::Config {
            name: known(settings.name.clone(), "name")?,
            data_dir: known(settings.data.clone(), "data")?,
            peer_listen: SocketAddr::new(bind, peer_port),
            peer_advertise: advertise_peer,
            peers,
            peer_dial: peer_dial
                .into_iter()
                .map(|rule| (rule.advertised, rule.dialled))
                .collect::<BTreeMap<_, _>>(),
            heartbeat,
            election_timeout_min,
            election_timeout_max,
            snapshot_log_bytes: known(settings.snapshot_log_bytes, "snapshot-log-bytes")?.0,
            log_keep_bytes: known(settings.log_keep_bytes, "log-keep-bytes")?.0,
            journal_bytes,
            journal_age: known(settings.journal_age, "journal-age")?.0,
            node_down_after: known(settings.node_down_after, "node-down-after")?.0,
            ..quorate_node::Config::default()
        };
        Ok(Self {
            bind,
            client_port: known(settings.client_port, "client-port")?,
            http_port: known(settings.http_port, "http-port")?,
            drain_timeout: known(settings.drain_timeout, "drain-timeout")?.0,
            ready_file: settings.ready_file.clone(),
            log: known(settings.log.clone(), "log")?,
            log_format: known(settings.log_format, "log-format")?,
            advertise_host,
            advertise_client: settings.advertise_client.clone(),
            node,
            settings,
        })
    }

    /// For the node, once it is known where its clients reach it.
    ///
    /// # Errors
    ///
    /// If its audit log cannot be opened.
    pub(crate) fn node(&self, client: SocketAddr) -> Result<quorate_node::Config, Fatal> {
        let advertised = self.advertise_client.clone();
        let client_advertise = advertised.unwrap_or_else(|| host_port(&self.advertise_host, client.port()));
        let audit = match &self.settings.audit_file {
            None => Audit::default(),
            Some(path) => match AuditFile::open(path) {
                Ok(file) => Audit::to(Arc::new(file)),
                Err(error) => return refuse("audit-file", format!("{}: {error}", path.display())),
            },
        };
        Ok(quorate_node::Config {
            client_advertise,
            audit,
            ..self.node.clone()
        })
    }

    /// Where the node keeps its data.
    pub(crate) fn data(&self) -> &Path {
        &self.node.data_dir
    }

    /// A file that sets the same.
    pub(crate) fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.settings).expect("all settings can be written as TOML")
    }
}

fn known<T>(value: Option<T>, key: &str) -> Result<T, Fatal> {
    value.ok_or_else(|| Fatal::usage(format!("{key} is not set")))
}

fn refuse<T>(key: &str, problem: impl fmt::Display) -> Result<T, Fatal> {
    Err(Fatal::usage(format!("{key}: {problem}")))
}

fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| "localhost".to_owned())
}

fn host_port(host: &str, port: u16) -> String {
    let is_ipv6 = host.contains(':') && !host.starts_with('[');
    if is_ipv6 {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let is_bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    let host_is_fine = !host.is_empty() && !is_bare_ipv6 && !host.contains(['/', ' ', '=']);
    let port = port.parse().ok().filter(|&port| port > 0)?;
    host_is_fine.then_some((host, port))
}

fn is_host_port(address: &str) -> bool {
    split(address).is_some()
}

fn is_loopback(address: &str) -> bool {
    split(address).is_some_and(|(host, _)| {
        let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn flags(flags: &[&str]) -> Settings {
        let arguments = ["quorate"].iter().chain(flags);
        Program::try_parse_from(arguments)
            .unwrap_or_else(|error| panic!("{error}"))
            .serve
            .settings
    }

    fn file(text: &str) -> Settings {
        Settings::from_toml(text).unwrap_or_else(|error| panic!("{error}"))
    }

    fn config(flags_given: &[&str], text: &str) -> Config {
        let settings = flags(flags_given).or(file(text)).or(Settings::defaults());
        Config::new(settings).unwrap_or_else(|error| panic!("{error}"))
    }

    fn problem(text: &str) -> String {
        match Settings::from_toml(text) {
            Err(problem) => problem,
            Ok(settings) => Config::new(settings.or(Settings::defaults()))
                .expect_err("it is refused")
                .to_string(),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let text = "client-port = 9000\nhttp-port = 9080\nheartbeat = \"60ms\"\n";
        let config = config(&["--client-port", "9100"], text);
        assert_eq!(config.client_port, 9100);
        assert_eq!(config.http_port, 9080);
        assert_eq!(config.node.heartbeat, Duration::from_millis(60));
        assert_eq!(config.node.peer_listen.port(), 7401);
    }

    #[test]
    fn every_setting_can_come_from_the_environment() {
        let command = <Program as clap::CommandFactory>::command();
        for argument in command
            .get_arguments()
            .filter(|argument| argument.get_id() != "print_config")
        {
            let flag = argument.get_long().expect("all have a flag");
            let env = argument.get_env().map(|env| env.to_string_lossy().into_owned());
            let expected = format!("QUORATE_{}", flag.to_uppercase().replace('-', "_"));
            if !argument.is_hide_set() {
                assert_eq!(env, Some(expected));
            }
        }
    }

    #[test]
    fn the_printed_settings_read_back_as_the_same() {
        let config = config(
            &[
                "--peers",
                "a:7401,b:7401",
                "--bind",
                "0.0.0.0",
                "--peer-dial",
                "b:7401=10.0.0.2:7401",
            ],
            "log-format = \"json\"",
        );
        let again = Config::new(file(&config.to_toml())).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.settings, config.settings);
        assert_eq!(again.node.peer_dial["b:7401"], "10.0.0.2:7401");
        assert_eq!(again.log_format, LogFormat::Json);
    }

    #[test]
    fn an_audit_log_is_opened_if_it_is_asked_for_and_only_then() {
        let bound = SocketAddr::from(([127, 0, 0, 1], 1));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("audit.jsonl");
        let none = config(&[], "").node(bound).unwrap();
        assert_eq!(format!("{:?}", none.audit), "Audit(off)");
        let flag = ["--audit-file", file.to_str().unwrap()];
        let kept = config(&flag, "").node(bound).unwrap();
        assert_eq!(format!("{:?}", kept.audit), "Audit(on)");
        assert!(file.exists());
        let nowhere = config(&["--audit-file", "/nowhere/audit.jsonl"], "").node(bound);
        let problem = nowhere.unwrap_err().to_string();
        assert!(
            problem.starts_with("audit-file: /nowhere/audit.jsonl: "),
            "{problem}"
        );
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line() {
        let problem = problem("name = \"a\"\nheartbaet = \"60ms\"\n");
        assert!(
            problem.starts_with("line 2: unknown field `heartbaet`"),
            "{problem}"
        );
    }

    #[test]
    fn a_wrong_value_is_named_with_its_line() {
        let problem = problem("# comment\nsnapshot-log-bytes = \"64 megs\"\n");
        assert!(
            problem.starts_with("line 2: `64 megs` is not a size"),
            "{problem}"
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_key() {
        for (text, expected) in [
            ("heartbeat = \"150ms\"", "election-timeout-min: "),
            ("election-timeout-min = \"400ms\"", "election-timeout-max: "),
            ("peers = [\"a\"]", "peers: `a` is not"),
            (
                "peers = [\"127.0.0.1:1\", \"127.0.0.1:1\"]",
                "peers: 127.0.0.1:1 is listed twice",
            ),
            (
                "peers = [\"127.0.0.1:7401\", \"b:7401\"]",
                "bind: 127.0.0.1 cannot be reached by b:7401",
            ),
            ("bind = \"0.0.0.0\"\npeer-port = 0", "peer-port: "),
            ("advertise-client = \"here\"", "advertise-client: "),
            ("journal-bytes = \"64KiB\"", "journal-bytes: "),
        ] {
            let problem = problem(text);
            assert!(problem.starts_with(expected), "{text}: {problem}");
        }
    }

    #[test]
    fn others_are_told_the_real_port_and_a_name_they_can_reach() {
        let bound = SocketAddr::from(([0, 0, 0, 0], 7777));
        let told = |text| config(&[], text).node(bound).unwrap().client_advertise;
        assert_eq!(told("client-port = 0"), "127.0.0.1:7777");
        assert_eq!(told("bind = \"0.0.0.0\""), format!("{}:7777", host_name()));
        assert_eq!(told("bind = \"::1\""), "[::1]:7777");
        assert_eq!(
            told("bind = \"0.0.0.0\"\nadvertise-host = \"broker-0\""),
            "broker-0:7777"
        );
        assert_eq!(told("advertise-client = \"lb:80\""), "lb:80");
        assert_eq!(
            config(&[], "advertise-host = \"b\"")
                .node
                .peer_advertise
                .as_deref(),
            Some("b:7401")
        );
        assert_eq!(config(&[], "peer-port = 0").node.peer_advertise, None);
    }
}
