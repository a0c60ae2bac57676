//! Transactions, and the part of the servers that executes them.

use leasehold_wire::comparison::Condition;
use leasehold_wire::op_result::Result as Answer;
use leasehold_wire::outcome::Result as Content;
use leasehold_wire::txn_op::Op as Step;
use leasehold_wire::{FailedComparison, Missing, OpResult, Txn, Value};

use super::*;
use crate::{TxnBranch, TxnOpResult, key};

type Store = HashMap<Bytes, (Bytes, Version)>;

/// Executes a transaction on a store. Only what the tests need is implemented: fields are not.
pub(super) fn execute(store: &mut Store, txn: &Txn, version: Version) -> Outcome {
    let stored = |(value, version): &(Bytes, Version)| Value {
        value: value.clone(),
        version: Some(*version),
    };
    let mut comparisons = txn.comparisons.iter().zip(0..);
    let failed = comparisons.find_map(|(comparison, index)| {
        let found = store.get(&comparison.key).map(stored);
        let value = found.as_ref().map(|found| &found.value);
        let holds = match comparison.condition.as_ref().unwrap() {
            Condition::Version(version) => {
                found.as_ref().and_then(|found| found.version) == Some(*version)
            }
            Condition::Present(present) => found.is_some() == *present,
            Condition::Equal(other) => value == Some(other),
            Condition::Less(other) => value < Some(other),
            Condition::AtMost(other) => value <= Some(other),
            Condition::Greater(other) => value > Some(other),
            Condition::AtLeast(other) => value >= Some(other),
        };
        (!holds).then_some(FailedComparison { index, found })
    });
    let list = match failed {
        None => &txn.then,
        Some(_) => &txn.or_else,
    };
    let mut draft = store.clone();
    let mut results = Vec::new();
    for listed in list {
        let result = match listed.op.as_ref().unwrap() {
            Step::Get(get) => match draft.get(&get.key) {
                Some(found) => Answer::Value(stored(found)),
                None => Answer::Missing(Missing {}),
            },
            Step::Put(put) => {
                draft.insert(put.key.clone(), (put.value.clone(), version));
                Answer::Count(1)
            }
            Step::Delete(delete) => Answer::Count(draft.remove(&delete.key).is_some().into()),
            Step::PutFields(_) | Step::DeleteFields(_) => Answer::Error(
                leasehold_wire::Error::new(ErrorCode::NotARecord, "not a record"),
            ),
            Step::Add(add) => {
                let old = draft.get(&add.key).map_or(&b"0"[..], |(value, _)| value);
                match std::str::from_utf8(old).unwrap().parse::<i64>() {
                    Ok(old) => {
                        let sum = old + add.delta;
                        draft.insert(add.key.clone(), (sum.to_string().into(), version));
                        Answer::Number(sum)
                    }
                    Err(_) => Answer::Error(leasehold_wire::Error::new(
                        ErrorCode::NotAnInteger,
                        "no integer",
                    )),
                }
            }
            Step::Append(append) => {
                let old = draft.get(&append.key).map_or(&b""[..], |(value, _)| value);
                let new = [old, &append.suffix].concat();
                let length = new.len() as u64;
                draft.insert(append.key.clone(), (new.into(), version));
                Answer::Count(length)
            }
        };
        if let (Answer::Error(error), false) = (&result, txn.keep_going) {
            return error.clone().into();
        }
        results.push(OpResult {
            result: Some(result),
        });
    }
    let version = (draft != *store).then_some(version);
    *store = draft;
    Outcome::txn(TxnResult {
        or_else: failed.is_some(),
        failed,
        version,
        results,
        abridged: false,
    })
}

/// Returns the result that a session has kept: without values, if these are large.
pub(super) fn kept(mut outcome: Outcome) -> Outcome {
    if let Some(Content::Txn(txn)) = &mut outcome.result {
        let values = txn
            .results
            .iter_mut()
            .filter_map(|it| match &mut it.result {
                Some(Answer::Value(value)) => Some(&mut value.value),
                _ => None,
            });
        let mut values: Vec<&mut Bytes> = values.collect();
        if values.iter().map(|value| value.len()).sum::<usize>() > 256 {
            values.iter_mut().for_each(|value| **value = Bytes::new());
            txn.abridged = true;
        }
    }
    outcome
}

#[tokio::test]
async fn a_transaction_executes_the_list_that_its_comparisons_choose() {
    let server = Server::start([]).await;
    let client = server.client().await;
    let version = client.put("a", "1").await.unwrap();
    let create = || {
        let txn = client.txn().when(key("a").version(version));
        let txn = txn.when([key("a").equals("1"), key("b").absent()]);
        txn.then(key("b").put("2")).or_else(key("a").get())
    };
    let outcome = create().execute().await.unwrap();
    assert!(outcome.held() && outcome.version > Some(version));
    assert_eq!(outcome.results, [TxnOpResult::Count(1)]);

    let again = create().execute().await.unwrap();
    let TxnBranch::OrElse(failed) = &again.branch else {
        panic!("b exists");
    };
    assert_eq!(failed.index, 2);
    assert_eq!(failed.found.as_ref().unwrap().value, "2");
    assert_eq!((again.held(), again.version), (false, None));
    let [TxnOpResult::Value(found)] = &again.results[..] else {
        panic!("{:?}", again.results);
    };
    assert_eq!((&found.value[..], found.version), (&b"1"[..], version));
}

/// Every comparison is tried with a value below, at and above the compared one, and without a value.
#[tokio::test]
async fn each_comparison_holds_for_its_values() {
    let server = Server::start([]).await;
    let client = server.client().await;
    let version = client.put("m", "m").await.unwrap();
    client.put("a", "a").await.unwrap();
    client.put("z", "z").await.unwrap();
    type Compare = Box<dyn Fn(&'static str) -> crate::Comparison>;
    let comparisons: [(Compare, &str); 8] = [
        (Box::new(move |it| key(it).version(version)), "m"),
        (Box::new(|it| key(it).present()), "amz"),
        (Box::new(|it| key(it).absent()), "-"),
        (Box::new(|it| key(it).equals("m")), "m"),
        (Box::new(|it| key(it).less_than("m")), "-a"),
        (Box::new(|it| key(it).at_most("m")), "-am"),
        (Box::new(|it| key(it).greater_than("m")), "z"),
        (Box::new(|it| key(it).at_least("m")), "mz"),
    ];
    for (compare, expected) in comparisons {
        let mut held = String::new();
        for name in ["-", "a", "m", "z"] {
            let txn = client.txn().when(compare(name)).then(key(name).get());
            if txn.execute().await.unwrap().held() {
                held += name;
            }
        }
        assert_eq!(held, expected, "{:?}", compare("m"));
    }
}

#[tokio::test]
async fn each_operation_has_its_result() {
    let server = Server::start([]).await;
    let client = server.client().await;
    client.put("old", "v").await.unwrap();
    let outcome = client
        .txn()
        .then([key("old").get(), key("none").get()])
        .then([key("old").delete(), key("old").delete()])
        .then([key("n").add(5), key("n").add(-7)])
        .then([
            key("s").append("ab"),
            key("s").append("c"),
            key("s").put(""),
        ])
        .then(key("r").put_fields([("name", "Ada")]))
        .then(key("r").delete_fields(["name"]))
        .keep_going()
        .execute()
        .await
        .unwrap();
    let TxnOpResult::Value(old) = &outcome.results[0] else {
        panic!("{:?}", outcome.results);
    };
    assert_eq!(old.value, "v");
    let not_a_record = TxnOpResult::Refused {
        kind: RefusalKind::NotARecord,
        message: "not a record".to_owned(),
    };
    let expected = [
        TxnOpResult::Missing,
        TxnOpResult::Count(1),
        TxnOpResult::Count(0),
        TxnOpResult::Number(5),
        TxnOpResult::Number(-2),
        TxnOpResult::Count(2),
        TxnOpResult::Count(3),
        TxnOpResult::Count(1),
        not_a_record.clone(),
        not_a_record,
    ];
    assert_eq!(outcome.results[1..], expected);
    assert_eq!(client.get("n").await.unwrap().unwrap().value, "-2");
    let Some(Op::Txn(sent)) = server.state().arrived[1].op.clone() else {
        panic!("a transaction arrived");
    };
    let Some(Step::PutFields(put)) = &sent.then[9].op else {
        panic!("{sent:?}");
    };
    assert_eq!(
        (&put.fields[0].name[..], &put.fields[0].value[..]),
        (&b"name"[..], &b"Ada"[..])
    );
    let Some(Step::DeleteFields(delete)) = &sent.then[10].op else {
        panic!("{sent:?}");
    };
    assert_eq!(delete.names, ["name"]);
}

#[tokio::test]
async fn an_operation_that_cannot_be_executed_prevents_all_others() {
    let server = Server::start([]).await;
    let client = server.client().await;
    client.put("text", "one").await.unwrap();
    let txn = client.txn().then([key("a").put("1"), key("text").add(1)]);
    let error = txn.execute().await.unwrap_err();
    let kind = RefusalKind::NotAnInteger;
    assert!(
        matches!(&error, Error::Refused { kind: found, .. } if *found == kind),
        "{error}"
    );
    assert!(!error.may_have_taken_effect(), "{error}");
    assert_eq!(client.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_refused_single_command_names_no_transaction() {
    let server = Server::start([]).await;
    let client = server.client().await;
    client.put("text", "one").await.unwrap();
    for error in [
        client.add("text", 1).await.unwrap_err(),
        client.add("", 1).await.unwrap_err(),
        client.append("", "a").await.unwrap_err(),
        client.get_and_put("", "a").await.unwrap_err(),
    ] {
        let said = error.to_string();
        assert!(said.starts_with("refused"), "{said}");
        assert!(!said.contains("txn"), "{said}");
    }
}

#[tokio::test]
async fn single_commands_return_what_they_found() {
    let server = Server::start([]).await;
    let client = server.client().await;
    assert_eq!(client.add("n", 40).await.unwrap(), 40);
    assert_eq!(client.add("n", 2).await.unwrap(), 42);
    assert_eq!(client.append("s", "ab").await.unwrap(), 2);
    assert_eq!(client.append("s", "cde").await.unwrap(), 5);
    assert_eq!(client.get_and_put("v", "1").await.unwrap(), None);
    let previous = client.get_and_put("v", "2").await.unwrap().unwrap();
    assert_eq!(previous.value, "1");
    assert_eq!(client.get("v").await.unwrap().unwrap().value, "2");
    let state = server.state();
    let mut writes = state.executed.iter().filter(|command| command.is_write());
    assert!(writes.all(|command| !command.is_multi()), "{writes:?}");
}

#[tokio::test]
async fn an_addition_sent_again_is_executed_once() {
    let faults = [
        Fault::Unavailable,
        Fault::Cut,
        Fault::ExecuteThenCut,
        Fault::Unavailable,
    ];
    let server = Server::start(faults).await;
    let client = server.client().await;
    assert_eq!(client.add("n", 1).await.unwrap(), 1);
    {
        let state = server.state();
        assert_eq!((state.executed.len(), state.arrived.len()), (1, 5));
        assert!(state.arrived.iter().all(|c| *c == state.arrived[0]));
    }
    assert_eq!(client.add("n", 1).await.unwrap(), 2);
}

#[tokio::test]
async fn a_transaction_whose_session_has_expired_is_not_executed_twice() {
    let server = Server::start([Fault::Expired]).await;
    let client = server.client().await;
    assert_eq!(client.add("n", 1).await.unwrap(), 1);

    let server = Server::start([Fault::ExecuteThenCut, Fault::Expired]).await;
    let client = server.client().await;
    let error = client.add("n", 1).await.unwrap_err();
    assert!(error.may_have_taken_effect(), "{error}");
    assert_eq!(server.state().executed.len(), 1);
}

#[tokio::test]
async fn a_transaction_with_lost_values_is_told_from_one_that_failed() {
    let server = Server::start([]).await;
    let client = server.client().await;
    let cut = || server.state().faults.push_back(Fault::ExecuteThenCut);
    client.put("v", vec![b'x'; 256]).await.unwrap();
    cut();
    let previous = client.get_and_put("v", vec![b'y'; 257]).await.unwrap();
    assert_eq!(previous.unwrap().value, vec![b'x'; 256]);

    cut();
    let error = client.get_and_put("v", "new").await.unwrap_err();
    let Error::Executed {
        held: true,
        version,
    } = error
    else {
        panic!("{error}");
    };
    let found = client.get("v").await.unwrap().unwrap();
    assert_eq!(
        (&found.value[..], Some(found.version)),
        (&b"new"[..], version)
    );
    assert!(error.may_have_taken_effect());
    let said = error.to_string();
    assert!(
        said.contains(&format!("have version {}", found.version)),
        "{said}"
    );

    client.put("v", vec![b'x'; 257]).await.unwrap();
    cut();
    let txn = client.txn().when(key("v").absent()).then(key("v").put(""));
    let error = txn.or_else(key("v").get()).execute().await.unwrap_err();
    assert!(
        matches!(
            error,
            Error::Executed {
                held: false,
                version: None
            }
        ),
        "{error}"
    );
    assert!(!error.may_have_taken_effect(), "it wrote nothing");
}

#[tokio::test]
async fn results_that_do_not_fit_the_operations_are_a_violation() {
    let server = Server::start([Fault::NoResults; 2]).await;
    let client = server.client().await;
    let error = client.add("n", 1).await.unwrap_err();
    assert!(matches!(error, Error::Protocol { .. }), "{error}");
    assert!(
        error.to_string().contains("results than operations"),
        "{error}"
    );
    let error = client.get("n").await.unwrap_err();
    assert!(
        error.to_string().contains("\"txn\" is not an answer"),
        "{error}"
    );
}

#[tokio::test]
async fn an_impossible_transaction_is_refused_before_it_is_sent() {
    let server = Server::start([]).await;
    let client = server.client().await;
    for (txn, field) in [
        (
            client.txn().when(key("a").absent()),
            "txn.then and txn.or_else are empty",
        ),
        (
            client.txn().when(key("").absent()).then(key("a").get()),
            "txn.comparisons[0].key",
        ),
        (
            client.txn().then([key("a").get(), key("").get()]),
            "txn.then[1].get.key",
        ),
        (
            client.txn().then(key("a").get()).or_else(key("").add(1)),
            "txn.or_else[0].add.key",
        ),
    ] {
        let error = txn.execute().await.unwrap_err();
        assert!(error.to_string().contains(field), "{field}: {error}");
        assert!(!error.may_have_taken_effect());
    }
    assert_eq!(server.state().arrived.len(), 0);
}
