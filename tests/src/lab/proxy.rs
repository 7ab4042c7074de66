//! Between an agent and its engine: a unix socket that passes everything on, or breaks in the ways
//! that engines do, switched while it runs.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};

/// What the engine seems to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As it is.
    Well,
    /// It answers every call with a failure of its own.
    Broken,
    /// It takes calls and never answers.
    Silent,
    /// It breaks off in the middle of each answer.
    Cuts,
}

#[derive(Debug)]
struct Shared {
    engine: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mood: Mood,
    over: bool,
    /// Calls that met a mood that is not well.
    met: u64,
    open: Vec<UnixStream>,
}

/// Dropping it ends all connections through it.
#[derive(Debug)]
pub struct EngineProxy {
    socket: PathBuf,
    shared: Arc<Shared>,
}

impl EngineProxy {
    /// Listens at `socket` for whoever may use the engine's own.
    pub fn start(engine: &Path, socket: &Path) -> Result<Self> {
        let group = fs::metadata(engine).context("the engine's socket")?.gid();
        let listener = UnixListener::bind(socket).context("the proxy's socket")?;
        chown(socket, None, Some(group))?;
        fs::set_permissions(socket, fs::Permissions::from_mode(0o660))?;
        let state = State { mood: Mood::Well, over: false, met: 0, open: Vec::new() };
        let shared =
            Arc::new(Shared { engine: engine.to_owned(), state: Mutex::new(state), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accepting.lock().over {
                    return;
                }
                let shared = Arc::clone(&accepting);
                std::thread::spawn(move || shared.carry(client));
            }
        });
        Ok(Self { socket: socket.to_owned(), shared })
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on, also for connections that are open.
    pub fn set(&self, mood: Mood) {
        self.shared.lock().mood = mood;
        self.shared.changed.notify_all();
    }

    /// How many calls have met an engine that is not well.
    pub fn met(&self) -> u64 {
        self.shared.lock().met
    }
}

impl Drop for EngineProxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.over = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
        // Wakes who accepts.
        let _ = UnixStream::connect(&self.socket);
        let _ = fs::remove_file(&self.socket);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry(self: Arc<Self>, client: UnixStream) {
        // An engine that is not there refuses; so does this one then.
        let Ok(engine) = UnixStream::connect(&self.engine) else { return };
        let (Ok(client_too), Ok(engine_too)) = (client.try_clone(), engine.try_clone()) else { return };
        if let (Ok(one), Ok(other)) = (client.try_clone(), engine.try_clone()) {
            self.lock().open.extend([one, other]);
        }
        let back = Arc::clone(&self);
        let answers = std::thread::spawn(move || drop(back.answers(engine_too, client_too)));
        let _ = self.calls(&client, &engine);
        for stream in [&client, &engine] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let _ = answers.join();
    }

    /// Waits while it is silent; the mood that then is.
    fn mood(&self) -> Mood {
        let mut state = self.lock();
        state.met += u64::from(state.mood != Mood::Well);
        while state.mood == Mood::Silent && !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.mood
    }

    fn calls(&self, mut client: &UnixStream, mut engine: &UnixStream) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        loop {
            let read = client.read(&mut bytes)?;
            if read == 0 {
                return engine.shutdown(Shutdown::Write);
            }
            if self.mood() == Mood::Broken {
                let body = r#"{"message":"the disk of the engine is broken"}"#;
                let head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n";
                let length = body.len();
                let answer = format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
                return client.write_all(answer.as_bytes());
            }
            engine.write_all(&bytes[..read])?;
        }
    }

    fn answers(&self, mut engine: UnixStream, mut client: UnixStream) -> io::Result<()> {
        let mut bytes = [0; 16 << 10];
        loop {
            let read = engine.read(&mut bytes)?;
            if read == 0 {
                return client.shutdown(Shutdown::Write);
            }
            if self.mood() == Mood::Cuts {
                client.write_all(&bytes[..read / 2])?;
                return client.shutdown(Shutdown::Both);
            }
            client.write_all(&bytes[..read])?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::http::{Body, call};
    use super::*;
    use std::time::Duration;

    /// An engine that answers every call with the same few words.
    fn engine(folder: &Path) -> PathBuf {
        let socket = folder.join("engine.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                let mut bytes = [0; 4096];
                let _ = client.read(&mut bytes);
                let _ = client.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"all\":\"is well\"}");
            }
        });
        socket
    }

    #[test]
    fn each_mood_is_what_a_caller_meets() {
        let folder = tempfile::tempdir().unwrap();
        let proxy = EngineProxy::start(&engine(folder.path()), &folder.path().join("proxy.sock")).unwrap();
        let ask = || call(proxy.socket(), "GET", "/_ping", Body::None, Duration::from_millis(300));
        assert_eq!(ask().unwrap().json().unwrap()["all"], "is well");
        assert_eq!(proxy.met(), 0);
        proxy.set(Mood::Broken);
        assert_eq!(ask().unwrap().status, 500);
        proxy.set(Mood::Silent);
        assert!(ask().is_err());
        proxy.set(Mood::Cuts);
        let cut = ask();
        assert!(cut.is_err() || cut.unwrap().json().is_err());
        assert!(proxy.met() >= 3);
        proxy.set(Mood::Well);
        assert_eq!(ask().unwrap().status, 200);
    }
}
