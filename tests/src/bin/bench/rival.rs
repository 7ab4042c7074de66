//! The least that a submit could be: a request over TLS, its token looked up by hash, one row
//! committed to the same kind of database with the same durability, an answer. One transaction a
//! request, as a plain service does it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use axum::{Json, Router};
use gpunion_protocol::http::{Submit, Submitted};
use gpunion_protocol::job::JobState;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rusqlite::Connection;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::relay::{Greeting, end_of_input, greet, runtime};

const TOKEN: &str = "the-token-of-whoever-measures";

struct Service {
    tokens: BTreeSet<[u8; 32]>,
    database: Mutex<Connection>,
}

pub(crate) fn serve(state: &Path) -> Result<()> {
    std::fs::create_dir_all(state)?;
    let database = Connection::open(state.join("rival.sqlite"))?;
    database.pragma_update(None, "journal_mode", "WAL")?;
    database.pragma_update(None, "synchronous", "FULL")?;
    database.execute("CREATE TABLE job (id TEXT PRIMARY KEY, body BLOB NOT NULL)", [])?;
    let tokens = [Sha256::digest(TOKEN).into()].into();
    let service = Arc::new(Service { tokens, database: Mutex::new(database) });
    runtime()?.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (acceptor, pin) = tls()?;
        let address = listener.local_addr()?.to_string();
        greet(&Greeting { address, pin: hex::encode(pin), link: String::new(), token: TOKEN.to_owned() })?;
        let app = Router::new().route("/v1/jobs", post(submit)).with_state(service);
        tokio::select! {
            () = end_of_input() => Ok(()),
            broken = accept(listener, acceptor, app) => broken,
        }
    })
}

fn tls() -> Result<(TlsAcceptor, [u8; 32])> {
    let key = rcgen::KeyPair::generate()?;
    let pin = Sha256::digest(rcgen::PublicKeyData::subject_public_key_info(&key)).into();
    let certificate = rcgen::CertificateParams::new(vec!["relay".to_owned()])?.self_signed(&key)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((TlsAcceptor::from(Arc::new(config)), pin))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, app: Router) -> Result<()> {
    loop {
        let (tcp, _) = listener.accept().await?;
        let (acceptor, app) = (acceptor.clone(), app.clone());
        tokio::spawn(async move {
            let stream = acceptor.accept(tcp).await?;
            let service = TowerToHyperService::new(app);
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?;
            anyhow::Ok(())
        });
    }
}

async fn submit(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Json(submit): Json<Submit>,
) -> Result<Json<Submitted>, StatusCode> {
    let token = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = token.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
    let hash: [u8; 32] = Sha256::digest(token).into();
    if !service.tokens.contains(&hash) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let job = submit.job.clone();
    let keep = move || -> Result<()> {
        let body = serde_json::to_vec(&submit)?;
        let database = service.database.lock().ok().context("the database")?;
        database.execute("INSERT OR REPLACE INTO job VALUES (?1, ?2)", (submit.job.to_string(), body))?;
        Ok(())
    };
    let kept = tokio::task::spawn_blocking(keep).await;
    kept.ok().and_then(Result::ok).ok_or(StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(Json(Submitted { job, state: JobState::Queued { why: "you are next".to_owned() } }))
}
