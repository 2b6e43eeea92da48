//! The binary: command line, logs, signals.

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tidemill_broker::assembly;
use tidemill_broker::config_file::{self, Environment, Overrides};
use tidemill_broker::log_command::{self, DumpOptions, Payloads};
use tidemill_contract::config::Config;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The Tidemill MQTT broker.
#[derive(Debug, Parser)]
#[command(name = "tidemill-broker", version, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker (the default).
    Serve(Serve),
    /// Check a config file and exit.
    CheckConfig {
        /// The config file.
        file: PathBuf,
    },
    /// Look at the embedded log of a broker that does not run. Exits with 0 if it is fine, 1 if something is damaged, 2
    /// if it cannot be looked at.
    #[command(subcommand)]
    Log(LogCommand),
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Read everything and say what does not fit.
    Check {
        /// Data directory.
        #[arg(long, value_name = "DIR")]
        data: PathBuf,
    },
    /// Print one line for each record.
    Dump(Dump),
}

#[derive(Debug, Args)]
struct Dump {
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Only records of this partition.
    #[arg(long, value_name = "N")]
    partition: Option<u16>,
    /// Only records from this offset on.
    #[arg(long, value_name = "OFFSET", default_value_t = 0)]
    from: u64,
    /// At most so many records.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Print payloads, too, with escapes for bytes that are not text.
    #[arg(long)]
    payload: bool,
}

#[derive(Debug, Args)]
struct Serve {
    /// Config file, YAML. Flags win over it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect, such as mqtt://127.0.0.1:1883; replaces the listeners of the file. Repeatable.
    #[arg(long, value_name = "URL")]
    listen: Vec<String>,
    /// Address of the admin port.
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Data directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Let clients in without credentials, also beyond loopback.
    #[arg(long)]
    allow_anonymous: bool,
    /// One config key, such as limits.connections=1000. Repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

fn main() -> ExitCode {
    // First, because everything that speaks TLS asks for it.
    let is_installed = rustls::crypto::ring::default_provider().install_default().is_ok();
    debug_assert!(is_installed, "nothing else installs a provider");
    end_process_on_panic();
    let command_line = CommandLine::parse();
    let outcome = match command_line.command {
        Some(Command::CheckConfig { file }) => check_config(&file),
        Some(Command::Log(command)) => return look_at_log(command),
        Some(Command::Serve(serve)) => run(serve),
        None => run(command_line.serve),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidemill-broker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A panic anywhere ends the process: a broker with a dead part is worse than one that starts anew.
fn end_process_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn check_config(file: &std::path::Path) -> anyhow::Result<()> {
    config_file::load(Some(file), &Overrides::default(), &Environment::read())?;
    println!("{} is valid", file.display());
    Ok(())
}

/// Prints to standard output; what is damaged in a dump goes to standard error.
fn look_at_log(command: LogCommand) -> ExitCode {
    let (mut output, mut errors) = (std::io::stdout().lock(), std::io::stderr().lock());
    let looked = match command {
        LogCommand::Check { data } => log_command::check(&data, &mut output),
        LogCommand::Dump(Dump { data, partition, from, limit, payload }) => {
            let payloads = if payload { Payloads::Shown } else { Payloads::Hidden };
            let options = DumpOptions { partition, from, limit, payloads };
            log_command::dump(&data, options, &mut output, &mut errors)
        }
    };
    match looked {
        Ok(log_command::Verdict::Fine) => ExitCode::SUCCESS,
        Ok(log_command::Verdict::Damaged) => ExitCode::from(1),
        Err(error) => {
            drop(errors);
            eprintln!("tidemill-broker: {:#}", anyhow::Error::from(error));
            ExitCode::from(2)
        }
    }
}

fn run(serve: Serve) -> anyhow::Result<()> {
    start_logging()?;
    let overrides = Overrides {
        listen: serve.listen,
        admin: serve.admin,
        data: serve.data,
        allow_anonymous: serve.allow_anonymous,
        settings: serve.set,
    };
    let environment = Environment::read();
    let config = config_file::load(serve.config.as_deref(), &overrides, &environment)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the system gives no threads")?;
    let outcome = runtime.block_on(serve_until_signal(&config, &environment));
    // Whatever still runs ends with the process; it must not hold it up.
    runtime.shutdown_background();
    outcome
}

/// Runs the broker until a signal or a fault, then stops it. A second signal ends it at once.
async fn serve_until_signal(config: &Config, environment: &Environment) -> anyhow::Result<()> {
    // Before anything starts, so that no signal is missed.
    let mut signals = Signals::listen()?;
    let mut running = tokio::select! {
        started = assembly::start(config, environment) => started?,
        () = signals.received() => {
            tracing::info!("stopped before it had started");
            return Ok(());
        }
    };
    let outcome = tokio::select! {
        () = signals.received() => Ok(()),
        reason = running.failed() => Err(anyhow::anyhow!(reason)),
    };
    tracing::info!("stopping");
    tokio::select! {
        () = running.stop() => outcome,
        () = signals.received() => Err(anyhow::anyhow!("stopped at once by a second signal")),
    }
}

/// The signals that ask for the end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be received");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Lines for people on a terminal, JSON elsewhere; `TIDEMILL_LOG` filters, `info` is the default.
fn start_logging() -> anyhow::Result<()> {
    let directives = std::env::var("TIDEMILL_LOG").ok().filter(|directives| !directives.trim().is_empty());
    let filter = log_filter(directives.as_deref().unwrap_or("info"))?;
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        subscriber.init();
    } else {
        subscriber.json().init();
    }
    Ok(())
}

/// A word alone is a level: the filter would take any other one for a module and write nothing else.
fn log_filter(directives: &str) -> anyhow::Result<EnvFilter> {
    let words = directives.split(',').map(str::trim);
    let mut words = words.filter(|word| !word.is_empty() && !word.contains(['=', '[', ']', '{', '}']));
    if let Some(word) = words.find(|word| word.parse::<LevelFilter>().is_err()) {
        anyhow::bail!(
            "TIDEMILL_LOG: '{word}' is no level: these are off, error, warn, info, debug and trace; for a module write \
             {word}=debug"
        );
    }
    EnvFilter::builder().parse(directives).context("TIDEMILL_LOG names no log lines")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_log_level_is_refused_by_name() {
        for (directives, word) in [
            ("inof", "inof"),
            ("info, debig", "debig"),
            ("tidemill_broker", "tidemill_broker"),
            ("a=b=c", ""),
        ] {
            let refused = format!("{:#}", log_filter(directives).unwrap_err());
            assert!(refused.starts_with("TIDEMILL_LOG") && refused.contains(word), "{refused}");
        }
        let taken = ["off", "Info", "trace", "info,", "warn,tidemill_broker::owner=debug", "no_module=trace"];
        for directives in taken.into_iter().chain(["info,[serve{member=a}]=debug", "[{member}]=trace"]) {
            assert!(log_filter(directives).is_ok(), "{directives}");
        }
    }
}
