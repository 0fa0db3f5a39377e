//! Scenarios of Apache's Rust client of the 5.x series: ENDPOINT SUFFIX NAME...; a JSON line each.
//!
//! Version 5.0.0 has producers and simple consumers only.

use std::env;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::json;

type Outcome = Result<String, Box<dyn Error>>;

fn argument(index: usize) -> String {
    env::args().nth(index).expect("ENDPOINT SUFFIX NAME...")
}

fn named(kind: &str) -> String {
    format!("{kind}_{}", argument(2))
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as i64
}

fn place() -> ClientOption {
    let mut found = ClientOption::default();
    found.set_access_url(argument(1));
    found.set_enable_tls(false);
    if let (Ok(access), Ok(secret)) = (env::var("INTEROP_ACCESS_KEY"), env::var("INTEROP_SECRET_KEY")) {
        found.set_access_key(access);
        found.set_secret_key(secret);
    }
    found
}

fn publishing(kind: &str) -> ProducerOption {
    let mut found = ProducerOption::default();
    found.set_topics(vec![named(kind)]);
    found
}

async fn producer(kind: &str) -> Result<Producer, Box<dyn Error>> {
    let mut made = Producer::new(publishing(kind), place())?;
    made.start().await?;
    Ok(made)
}

async fn consumer(group: &str, kind: &str) -> Result<SimpleConsumer, Box<dyn Error>> {
    let mut wanted = SimpleConsumerOption::default();
    wanted.set_topics(vec![named(kind)]);
    wanted.set_consumer_group(named(group));
    let mut place = place();
    place.set_long_polling_timeout(Duration::from_secs(6));
    let mut made = SimpleConsumer::new(wanted, place)?;
    made.start().await?;
    Ok(made)
}

/// Receive and acknowledge until there are so many messages.
async fn collect(from: &SimpleConsumer, kind: &str, count: usize) -> Result<Vec<MessageView>, Box<dyn Error>> {
    let filter = FilterExpression::new(FilterType::Tag, "*");
    let begun = Instant::now();
    let mut got = Vec::new();
    while got.len() < count {
        if begun.elapsed() > Duration::from_secs(90) {
            return Err(format!("not in 90 s: {} of {count}", got.len()).into());
        }
        // An empty poll is an error of this client.
        for one in from.receive(named(kind), &filter).await.unwrap_or_default() {
            from.ack(&one).await?;
            got.push(one);
        }
    }
    Ok(got)
}

fn body(message: &MessageView) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, wanted: T) -> Result<(), Box<dyn Error>> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("{found:?}, not {wanted:?}").into())
}

async fn send_and_simple_consumer() -> Outcome {
    let sender = producer("NORMAL").await?;
    let message = MessageBuilder::builder()
        .set_topic(named("NORMAL"))
        .set_tag("t")
        .set_keys(vec!["k"])
        .set_properties([("colour", "red")].into_iter().collect::<std::collections::HashMap<_, _>>())
        .set_body(b"hello".to_vec())
        .build()?;
    let sent = sender.send(message).await?;
    let consumer = consumer("simple", "NORMAL").await?;
    let got = collect(&consumer, "NORMAL", 1).await?;
    let one = &got[0];
    expect(one.message_id(), sent.message_id())?;
    expect(body(one), "hello".to_string())?;
    expect(one.tag(), Some("t"))?;
    expect(one.keys(), &["k".to_string()][..])?;
    expect(one.properties().get("colour").map(String::as_str), Some("red"))?;
    let several = ["a", "b", "c"].map(|text| {
        MessageBuilder::builder().set_topic(named("NORMAL")).set_body(text.into()).build().expect("complete")
    });
    let receipts = sender.batch_send(several.into()).await?;
    let mut bodies: Vec<_> = collect(&consumer, "NORMAL", 3).await?.iter().map(body).collect();
    bodies.sort();
    expect(bodies, vec!["a".to_string(), "b".into(), "c".into()])?;
    consumer.shutdown().await?;
    let answer = format!("{}; 3 in one call: {} results", sent.message_id(), receipts.len());
    sender.shutdown().await?;
    Ok(answer)
}

async fn fifo() -> Outcome {
    let sender = producer("FIFO").await?;
    let consumer = consumer("fifo", "FIFO").await?;
    for number in 10..50 {
        let group = format!("g{}", number % 4);
        let text = number.to_string().into_bytes();
        sender.send(MessageBuilder::fifo_message_builder(named("FIFO"), text, group).build()?).await?;
    }
    let got = collect(&consumer, "FIFO", 40).await?;
    for group in ["g0", "g1", "g2", "g3"] {
        let bodies: Vec<_> = got.iter().filter(|one| one.message_group() == Some(group)).map(body).collect();
        let mut sorted = bodies.clone();
        sorted.sort();
        expect(bodies, sorted)?;
    }
    consumer.shutdown().await?;
    sender.shutdown().await?;
    Ok("4 groups, simple consumer".into())
}

async fn delay() -> Outcome {
    let sender = producer("DELAY").await?;
    let consumer = consumer("delay", "DELAY").await?;
    let at = now_ms() / 1000 + 5;
    let message = MessageBuilder::delay_message_builder(named("DELAY"), b"kept".to_vec(), at).build()?;
    sender.send(message).await?;
    let got = collect(&consumer, "DELAY", 1).await?;
    let late = now_ms() - at * 1000;
    expect(body(&got[0]), "kept".to_string())?;
    if !(-1000..5000).contains(&late) {
        return Err(format!("{late} ms late").into());
    }
    consumer.shutdown().await?;
    sender.shutdown().await?;
    Ok(format!("{late} ms late; this client has no recall"))
}

async fn transaction() -> Outcome {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let checker = Box::new(move |_: String, half: MessageView| {
        noted.lock().expect("not poisoned").push(body(&half));
        TransactionResolution::COMMIT
    });
    let mut sender = Producer::new_transaction_producer(publishing("TRANSACTION"), place(), checker)?;
    sender.start().await?;
    let consumer = consumer("transaction", "TRANSACTION").await?;
    for decision in ["commit", "rollback", "undecided"] {
        let text = decision.as_bytes().to_vec();
        let message = MessageBuilder::transaction_message_builder(named("TRANSACTION"), text).build()?;
        let open = sender.send_transaction_message(message).await?;
        match decision {
            "commit" => open.commit().await?,
            "rollback" => open.rollback().await?,
            _ => {}
        }
    }
    let mut bodies: Vec<_> = collect(&consumer, "TRANSACTION", 2).await?.iter().map(body).collect();
    bodies.sort();
    expect(bodies, vec!["commit".to_string(), "undecided".into()])?;
    expect(asked.lock().expect("not poisoned").clone(), vec!["undecided".to_string()])?;
    consumer.shutdown().await?;
    sender.shutdown().await?;
    Ok("one committed, one asked about".into())
}

async fn restart() -> Outcome {
    let sender = producer("RESTART").await?;
    let consumer = consumer("restart", "RESTART").await?;
    let end = Instant::now() + Duration::from_secs(env::var("INTEROP_SECONDS")?.parse()?);
    let (mut sent, got) = (Vec::new(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&got);
    tokio::spawn(async move {
        let filter = FilterExpression::new(FilterType::Tag, "*");
        loop {
            match consumer.receive(named("RESTART"), &filter).await {
                Ok(found) => {
                    for one in found {
                        noted.lock().expect("not poisoned").push(now_ms());
                        let _ = consumer.ack(&one).await;
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    });
    println!("running");
    let mut number = 0;
    while Instant::now() < end {
        number += 1;
        let text = number.to_string().into_bytes();
        let message = MessageBuilder::builder().set_topic(named("RESTART")).set_body(text).build()?;
        if sender.send(message).await.is_ok() {
            sent.push(now_ms());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let received = got.lock().expect("not poisoned").clone();
    Ok(json!({"sent": sent, "got": received}).to_string())
}

async fn run(name: &str) -> Outcome {
    match name {
        "grpc_send_and_simple_consumer" => send_and_simple_consumer().await,
        "grpc_fifo" => fifo().await,
        "grpc_delay_and_recall" => delay().await,
        "grpc_transaction" => transaction().await,
        "grpc_restart" => restart().await,
        other => Err(format!("no scenario {other}").into()),
    }
}

#[tokio::main]
async fn main() {
    for name in env::args().skip(3) {
        let begun = Instant::now();
        let (status, evidence) = match run(&name).await {
            Ok(evidence) => ("pass", evidence),
            Err(error) => ("fail", error.to_string()),
        };
        let ms = begun.elapsed().as_millis() as u64;
        println!("{}", json!({"scenario": name, "status": status, "evidence": evidence, "ms": ms}));
    }
    std::process::exit(0);
}
