//! The operator's binary.

use anyhow::Context;
use clap::{Parser, Subcommand};
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidemill_contract::config::Config;
use tidemill_operator::admin::{Readiness, router};
use tidemill_operator::clients::kafka::KafkaObserver;
use tidemill_operator::controller::reconcile::Shared;
use tidemill_operator::controller::{self, Scope};
use tidemill_operator::leases::{History, create_leases, leases_of};
use tidemill_operator::metrics::Metrics;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::info;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The Tidemill operator: reconciles MqttCluster resources.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Reconcile clusters until SIGTERM.
    Run {
        /// Only clusters in this namespace; may be repeated. Default: all namespaces.
        #[arg(long = "watch-namespace", value_name = "NS")]
        watch_namespaces: Vec<String>,
        /// Image of the brokers of clusters that name none.
        #[arg(
            long,
            value_name = "IMAGE",
            default_value = concat!("tidemill/broker:", env!("CARGO_PKG_VERSION"))
        )]
        broker_image: String,
        /// Address of /healthz, /readyz and /metrics.
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
        admin: SocketAddr,
    },
    /// Print the custom resource definitions.
    Crds,
    /// Create the leases of brokers that coordinate through Kubernetes without an MqttCluster.
    Leases {
        /// The brokers' config file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Members, separated by commas.
        #[arg(long, value_name = "A,B,C", value_delimiter = ',', required = true)]
        members: Vec<String>,
        /// No broker of this cluster has ever run: its groups may be claimed at once.
        #[arg(long)]
        new_cluster: bool,
    },
}

fn main() -> anyhow::Result<()> {
    // Before any TLS: two providers in one process would leave rustls without a default.
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("another TLS provider is installed already"))?;
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    match arguments.command {
        Command::Crds => {
            print!("{}", tidemill_crds::mqtt_cluster_yaml());
            Ok(())
        }
        Command::Run { watch_namespaces, broker_image, admin } => {
            start_logging()?;
            runtime.block_on(run(watch_namespaces, broker_image, admin))
        }
        Command::Leases { config, members, new_cluster } => {
            let history = if new_cluster { History::New } else { History::Unknown };
            runtime.block_on(make_leases(&config, &members, history))
        }
    }
}

/// JSON lines for machines, plain lines for a terminal.
fn start_logging() -> anyhow::Result<()> {
    use std::io::IsTerminal;
    let directives = std::env::var("TIDEMILL_LOG").unwrap_or_else(|_| "info".to_owned());
    let filter = tracing_subscriber::EnvFilter::builder()
        .parse(&directives)
        .context("TIDEMILL_LOG names no log lines")?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        builder.init();
    } else {
        builder.json().flatten_event(true).init();
    }
    Ok(())
}

async fn run(watch_namespaces: Vec<String>, broker_image: String, admin: SocketAddr) -> anyhow::Result<()> {
    let scopes: Vec<_> = match watch_namespaces.is_empty() {
        true => vec![Scope::AllNamespaces],
        false => watch_namespaces.into_iter().map(Scope::Namespace).collect(),
    };
    let client = Client::try_default().await.context("no way to a Kubernetes API")?;
    let metrics = Arc::new(Metrics::new()?);
    let readiness = Arc::new(Readiness::waiting_for(scopes.len()));
    let reporter =
        Reporter { controller: "tidemill-operator".to_owned(), instance: std::env::var("POD_NAME").ok() };
    let shared = Arc::new(Shared {
        recorder: Recorder::new(client.clone(), reporter),
        client,
        kafka: KafkaObserver::default(),
        default_image: broker_image,
        metrics: metrics.clone(),
    });
    let listener =
        tokio::net::TcpListener::bind(admin).await.with_context(|| format!("cannot listen on {admin}"))?;
    let (stop, stopping) = watch::channel(false);
    info!(version = env!("CARGO_PKG_VERSION"), %admin, ?scopes, "operator starts");
    let mut tasks = JoinSet::new();
    for scope in scopes {
        tasks.spawn(controller::run(scope, shared.clone(), readiness.clone(), stopped(stopping.clone())));
    }
    let server = axum::serve(listener, router(metrics, readiness)).with_graceful_shutdown(stopped(stopping));
    tasks.spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "admin port failed");
        }
    });
    let ended = tokio::select! {
        signal = termination() => { signal?; None }
        ended = tasks.join_next() => ended,
    };
    info!("operator stops");
    stop.send_replace(true);
    match ended {
        // A part that ends by itself, or panics, ends the process: half an operator would go unnoticed.
        Some(ended) => {
            ended?;
            anyhow::bail!("a part of the operator ended");
        }
        None => {
            while let Some(ended) = tasks.join_next().await {
                ended?;
            }
            Ok(())
        }
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the same.
    let _ = stopping.wait_for(|stop| *stop).await;
}

async fn termination() -> anyhow::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn make_leases(file: &Path, members: &[String], history: History) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let config: Config = serde_saphyr::from_str(&text).with_context(|| format!("in {}", file.display()))?;
    config.check().with_context(|| format!("in {}", file.display()))?;
    let leases = leases_of(&config, members, history)?;
    let client = Client::try_default().await.context("no way to a Kubernetes API")?;
    let namespace =
        config.membership.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    create_leases(&client, &namespace, &leases).await?;
    println!("{} leases of cluster {} are in namespace {namespace}", leases.len(), config.cluster.0);
    Ok(())
}
