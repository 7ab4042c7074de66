//! Packs and snapshots: taken in only when true and whole, served in parts, resumed after a cut.

use gpunion_protocol::http::{HAVE_MAX, HavePacks, MissingPacks, Role};
use gpunion_protocol::ids::PackId;
use gpunion_protocol::problem::Code;
use gpunion_protocol::tables::MANIFEST_MAGIC;
use gpunion_relay::Config;
use reqwest::Method;

use crate::common::*;

fn id(bytes: &[u8]) -> PackId {
    PackId(*blake3::hash(bytes).as_bytes())
}

/// What a relay can read of a sealed manifest: its table of packs.
pub(crate) fn manifest(packs: &[PackId], sealed: &[u8]) -> Vec<u8> {
    let mut packs = packs.to_vec();
    packs.sort();
    let mut out = MANIFEST_MAGIC.to_vec();
    out.extend((packs.len() as u32).to_le_bytes());
    out.extend(packs.iter().flat_map(|id| id.0));
    out.extend(sealed);
    out
}

async fn missing(client: &Client, kind: &str, ids: &[PackId]) -> Vec<PackId> {
    let have = HavePacks { packs: ids.to_vec() };
    client.post::<MissingPacks>(&format!("/v1/{kind}/have"), &have).await.unwrap().missing
}

#[tokio::test]
async fn a_pack_is_what_its_id_says() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n / 7) as u8).collect();
    let path = format!("/v1/packs/{}", id(&bytes));
    let mut altered = bytes.clone();
    altered[1_000_000] ^= 1;
    assert_eq!(code(olga.put(&path, altered).await), Code::Corrupt);
    assert_eq!(code(olga.put(&path, bytes[..2_000_000].to_vec()).await), Code::Corrupt);
    assert_eq!(missing(&olga, "packs", &[id(&bytes), id(&bytes)]).await, [id(&bytes)]);
    assert_eq!(olga.put(&path, bytes.clone()).await.unwrap(), 201);
    assert_eq!(olga.put(&path, bytes.clone()).await.unwrap(), 200);
    assert_eq!(missing(&olga, "packs", &[id(&bytes), id(b"x")]).await, [id(b"x")]);

    // Anybody of the group may read what is sealed.
    let ada = invited(&olga, Role::Member, "ada").await;
    let whole = ada.send(ada.request(Method::GET, &path)).await.unwrap();
    assert_eq!(whole.bytes().await.unwrap(), bytes);
    let part = ada.request(Method::GET, &path).header("range", "bytes=2999990-");
    let part = ada.send(part).await.unwrap();
    assert_eq!(part.status(), 206);
    assert_eq!(part.headers()["content-range"], "bytes 2999990-2999999/3000000");
    assert_eq!(part.bytes().await.unwrap(), bytes[2_999_990..]);
    let beyond = ada.request(Method::GET, &path).header("range", "bytes=3000000-");
    assert_eq!(ada.send(beyond).await.unwrap_err().status, 416);
    let head = ada.send(ada.request(Method::HEAD, &path)).await.unwrap();
    assert_eq!(head.headers()["content-length"], "3000000");
    assert_eq!(code(ada.get::<()>(&format!("/v1/packs/{}", id(b"x"))).await), Code::NotFound);
    assert_eq!(code(ada.get::<()>("/v1/packs/..%2F..%2Fkey.pem").await), Code::NotFound);
    relay.stop().await;
}

#[tokio::test]
async fn f98_what_is_too_large_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let told = olga.put(&format!("/v1/packs/{}", "0".repeat(64)), vec![0; 10 << 20]).await;
    let problem = told.unwrap_err();
    assert_eq!(problem.code, Code::TooLarge);
    assert!(problem.detail.unwrap().contains("9437184 bytes"));
    // Without a length in front, it is counted as it comes.
    let piece = bytes::Bytes::from(vec![0u8; 1 << 20]);
    let pieces = futures_util::stream::iter((0..12).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let path = format!("/v1/packs/{}", "1".repeat(64));
    let request = olga.request(Method::PUT, &path).body(reqwest::Body::wrap_stream(pieces));
    // The answer arrives although the client still sends: it isn't overtaken by the end.
    assert_eq!(soon("an answer", request.send()).await.unwrap().status(), 413);
    let many = HavePacks { packs: vec![PackId([1; 32]); HAVE_MAX + 1] };
    assert_eq!(code(olga.post::<()>("/v1/packs/have", &many).await), Code::TooLarge);
    relay.stop().await;
}

#[tokio::test]
async fn f96_an_upload_that_was_cut_leaves_nothing_and_is_sent_again() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let bytes = vec![5u8; 4 << 20];
    let path = format!("/v1/packs/{}", id(&bytes));
    let half = bytes::Bytes::from(bytes[..2 << 20].to_vec());
    let cut = futures_util::stream::iter([Ok(half), Err(std::io::Error::other("cut"))]);
    let request = olga.request(Method::PUT, &path).body(reqwest::Body::wrap_stream(cut));
    soon("the cut", request.send()).await.unwrap_err();
    assert_eq!(missing(&olga, "packs", &[id(&bytes)]).await, [id(&bytes)]);
    assert_eq!(olga.put(&path, bytes.clone()).await.unwrap(), 201);
    let incoming = dir.path().join("incoming");
    soon("an empty folder", async {
        while std::fs::read_dir(&incoming).unwrap().count() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    relay.stop().await;
}

#[tokio::test]
async fn f97_an_upload_comes_in_parts_where_a_proxy_takes_no_whole_pack() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let bytes: Vec<u8> = (0..3u32 << 20).map(|n| (n / 7) as u8).collect();
    let path = format!("/v1/packs/{}", id(&bytes));
    let part = async |from: usize, to: usize| {
        let range = format!("bytes {from}-{}/{}", to - 1, bytes.len());
        let request = olga.request(Method::PUT, &path).header("content-range", range);
        let answer = olga.send(request.body(bytes[from..to].to_vec())).await.unwrap();
        let offset = answer.headers().get(gpunion_protocol::http::UPLOAD_OFFSET);
        (answer.status().as_u16(), offset.map(|value| value.to_str().unwrap().to_owned()))
    };
    let so_far = |offset: usize| (202, Some(offset.to_string()));
    assert_eq!(part(0, 1 << 20).await, so_far(1 << 20));
    assert_eq!(missing(&olga, "packs", &[id(&bytes)]).await, [id(&bytes)]);
    assert_eq!(part(2 << 20, 3 << 20).await, so_far(1 << 20), "told where to go on");
    assert_eq!(part(1 << 20, 2 << 20).await, so_far(2 << 20));
    assert_eq!(part(2 << 20, 3 << 20).await, (201, None));
    assert_eq!(missing(&olga, "packs", &[id(&bytes)]).await, []);
    let whole = olga.send(olga.request(Method::GET, &path)).await.unwrap();
    assert!(whole.bytes().await.unwrap() == bytes);
    let odd = olga.request(Method::PUT, &path).header("content-range", "bytes 5-1/9").body("x");
    assert_eq!(code(olga.send(odd).await), Code::BadRequest);
    relay.stop().await;
}

#[tokio::test]
async fn a_snapshot_needs_its_packs() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let (one, two) = (vec![1u8; 1_000], vec![2u8; 2_000]);
    let sealed = manifest(&[id(&one), id(&two)], b"sealed");
    let path = format!("/v1/snapshots/{}", id(&sealed));
    olga.put(&format!("/v1/packs/{}", id(&one)), one.clone()).await.unwrap();
    let problem = olga.put(&path, sealed.clone()).await.unwrap_err();
    assert_eq!(problem.code, Code::Missing);
    assert_eq!(problem.detail.unwrap(), id(&two).to_string());
    assert_eq!(missing(&olga, "snapshots", &[id(&sealed)]).await, [id(&sealed)]);
    olga.put(&format!("/v1/packs/{}", id(&two)), two.clone()).await.unwrap();
    assert_eq!(olga.put(&path, sealed.clone()).await.unwrap(), 201);
    assert_eq!(missing(&olga, "snapshots", &[id(&sealed)]).await, []);
    let back = olga.send(olga.request(Method::GET, &path)).await.unwrap();
    assert_eq!(back.bytes().await.unwrap(), sealed);
    let nonsense = b"no manifest".to_vec();
    let path = format!("/v1/snapshots/{}", id(&nonsense));
    assert_eq!(code(olga.put(&path, nonsense).await), Code::Corrupt);
    relay.stop().await;
}

#[tokio::test]
async fn f101_a_nearly_full_disk_refuses_packs_but_the_relay_works_on() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let path = format!("/v1/packs/{}", id(b"published"));
    olga.put(&path, b"published".to_vec()).await.unwrap();
    relay.stop().await;
    let mut config = Config::new(dir.path());
    // As much as no disk has.
    config.limits.keep_free = u64::MAX;
    let relay = Relay::with(config).await;
    let olga = relay.stranger().being(&olga);
    let refused = olga.put(&format!("/v1/packs/{}", id(b"pack")), b"pack".to_vec()).await.unwrap_err();
    assert_eq!((refused.code, refused.title.as_str()), (Code::DiskFull, "the relay's disk is nearly full"));
    invited(&olga, Role::Member, "ada").await;
    let served = olga.send(olga.request(Method::GET, &path)).await.unwrap();
    assert_eq!(served.bytes().await.unwrap(), &b"published"[..]);
    relay.stop().await;
}
