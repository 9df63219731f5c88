use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// Answers every byte with itself.
async fn echo() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    (address, tasks)
}

async fn ask(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

async fn connect(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.address()).await.expect("it listens")
}

async fn until(mut done: impl FnMut() -> bool) {
    quorate_test_cluster::wait_until("the proxy", Duration::from_secs(10), async || {
        done().then_some(())
    })
    .await
    .expect("it comes so far");
}

#[tokio::test]
async fn what_is_held_arrives_when_the_cut_heals() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    assert_eq!(ask(&mut stream, b"before").await.expect("it passes"), b"before");
    for link in [&proxy.requests, &proxy.answers] {
        link.set(Conduct {
            stalled: true,
            ..Conduct::default()
        });
        let held = link.tally().bytes_held;
        let mut answer = [0; 6];
        stream.write_all(b"during").await.expect("it is taken");
        until(|| link.tally().bytes_held == held + 6).await;
        let early = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut answer)).await;
        assert!(early.is_err(), "it passes a link that is cut");
        link.set(Conduct::default());
        stream.read_exact(&mut answer).await.expect("it arrives late");
        assert_eq!(&answer, b"during");
    }
}

#[tokio::test]
async fn behind_a_cut_a_dead_target_is_a_silent_one() {
    let (address, echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    ask(&mut stream, b"before").await.expect("it passes");
    proxy.hold_answers();
    drop(echo);
    let mut late = connect(&proxy).await;
    let mut buffer = [0; 1];
    for stream in [&mut stream, &mut late] {
        let seen = tokio::time::timeout(Duration::from_millis(50), stream.read(&mut buffer)).await;
        assert!(seen.is_err(), "it was told that the target is dead: {seen:?}");
    }
    proxy.answers.set(Conduct::default());
    for stream in [&mut stream, &mut late] {
        let seen = stream.read(&mut buffer).await;
        assert!(matches!(seen, Ok(0) | Err(_)), "{seen:?}");
    }
}

#[tokio::test]
async fn a_reset_breaks_what_there_is_and_lets_others_come() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    ask(&mut stream, b"before").await.expect("it passes");
    proxy.reset();
    let error = stream.read(&mut [0; 1]).await.expect_err("it is broken");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(proxy.connections().broken, 1);
    ask(&mut connect(&proxy).await, b"after")
        .await
        .expect("it passes");
}

#[tokio::test]
async fn a_closed_port_refuses_and_opens_again() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut kept = connect(&proxy).await;
    ask(&mut kept, b"before").await.expect("it passes");
    proxy.refuse(true);
    let address = proxy.address();
    let refused = async || {
        let error = TcpStream::connect(&address).await.err()?;
        (error.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    };
    quorate_test_cluster::wait_until("a refusal", Duration::from_secs(10), refused)
        .await
        .expect("it refuses");
    ask(&mut kept, b"on").await.expect("what is there goes on");
    proxy.refuse(false);
    proxy.accept();
    let opened = async || TcpStream::connect(&address).await.ok();
    let mut stream = quorate_test_cluster::wait_until("a connection", Duration::from_secs(10), opened)
        .await
        .expect("it opens again");
    ask(&mut stream, b"after").await.expect("it passes");
    drop(kept);
}

#[tokio::test]
async fn delay_and_limit_make_it_slow_and_change_nothing() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    proxy.requests.set(Conduct {
        delay: Duration::from_millis(60),
        ..Conduct::default()
    });
    let began = Instant::now();
    ask(&mut stream, b"slow").await.expect("it passes");
    assert!(began.elapsed() >= Duration::from_millis(60));
    proxy.requests.set(Conduct::default());
    proxy.answers.set(Conduct {
        bytes_per_second: Some(100_000),
        ..Conduct::default()
    });
    let text: Vec<u8> = (0..20_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let began = Instant::now();
    assert_eq!(ask(&mut stream, &text).await.expect("it passes"), text);
    assert!(
        began.elapsed() >= Duration::from_millis(150),
        "{:?}",
        began.elapsed()
    );
    assert!(proxy.answers.tally().bytes_slowed >= 20_000);
}

#[tokio::test]
async fn a_loss_breaks_the_connection() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    proxy.requests.set(Conduct {
        lost_percent: 100,
        ..Conduct::default()
    });
    let mut stream = connect(&proxy).await;
    ask(&mut stream, b"lost").await.expect_err("it is lost");
    assert_eq!(proxy.requests.tally().pieces_lost, 1);
}

#[tokio::test]
async fn it_hangs_up_after_so_many_bytes() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    ask(&mut stream, b"before").await.expect("it passes");
    proxy.hang_up_after(3);
    ask(&mut stream, b"during").await.expect_err("it hangs up");
    assert_eq!(proxy.requests.tally().bytes_passed, 9);
}

#[tokio::test]
async fn an_end_comes_after_all_that_was_said() {
    let (address, _echo) = echo().await;
    let proxy = Proxy::to(&address).await.expect("a proxy");
    let mut stream = connect(&proxy).await;
    let text = vec![7; 300_000];
    let (mut from, mut to) = stream.split();
    let say = async {
        to.write_all(&text).await.expect("it is taken");
        to.shutdown().await.expect("it is ours");
    };
    let mut answer = Vec::new();
    let (_, heard) = tokio::join!(say, from.read_to_end(&mut answer));
    heard.expect("it ends gently");
    assert_eq!(answer.len(), text.len());
}
