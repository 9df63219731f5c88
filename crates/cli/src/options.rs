//! What all commands have in common.

use std::time::Duration;

use clap::Args;
use quorate_client::Client;

use crate::exit::Failure;
use crate::output::Output;
use crate::values::duration;

/// Where `quorate dev` and a default configuration listen.
pub(crate) const ENDPOINTS_DEFAULT: [&str; 3] = ["127.0.0.1:7400", "127.0.0.1:7410", "127.0.0.1:7420"];

/// A person waits in front of it: shorter than the library's default.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// Options of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Nodes to ask, separated by commas; one that answers is enough
    /// [default: 127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420]
    #[arg(
        long,
        env = "QUORATE_ENDPOINT",
        value_name = "HOST:PORT,…",
        value_delimiter = ',',
        global = true
    )]
    pub(crate) endpoint: Option<Vec<String>>,

    /// JSON instead of text: one object, or one per line
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Most time for a call with all its repeats [default: 10s; for `cluster add` 5m]
    #[arg(long, value_name = "DURATION", value_parser = duration, global = true)]
    pub(crate) timeout: Option<Duration>,
}

/// What a command works with.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) output: Output,
    /// The endpoints are a guess: nobody named any.
    pub(crate) endpoints_guessed: bool,
    timeout: Option<Duration>,
}

impl Context {
    pub(crate) fn new(options: &Options) -> Result<Self, Failure> {
        let given = options.endpoint.clone().filter(|endpoints| !endpoints.is_empty());
        let endpoints_guessed = given.is_none();
        let endpoints = given.unwrap_or_else(|| ENDPOINTS_DEFAULT.map(str::to_owned).to_vec());
        let client = Client::builder()
            .endpoints(endpoints)
            .timeout(options.timeout.unwrap_or(TIMEOUT_DEFAULT))
            .connect_lazy()?;
        Ok(Self {
            client,
            output: Output::new(options.json),
            endpoints_guessed,
            timeout: options.timeout,
        })
    }

    /// The client for what takes long by nature, unless a limit was given.
    pub(crate) fn patient_client(&self, timeout: Duration) -> Client {
        match self.timeout {
            Some(_) => self.client.clone(),
            None => self.client.with_timeout(timeout),
        }
    }
}
