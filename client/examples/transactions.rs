//! Sells the last pieces of a stock to several customers at the same time, and sells none twice.

#![allow(clippy::print_stdout)] // a program

mod common;

use leasehold_client::{Client, Error, TxnBranch, key};

/// Sells one piece to a customer. The stock, the customer's order and the list of all buyers change
/// together, or none of them changes. Returns false if the stock is used up.
async fn sell(client: &Client, shop: &str, customer: &str) -> Result<bool, Error> {
    let stock = format!("{shop}/stock");
    let order = format!("{shop}/order/{customer}");
    let outcome = client
        .txn()
        .when(key(order.clone()).absent())
        .when(key(stock.clone()).greater_than("0"))
        .then(key(stock).add(-1))
        .then(key(order).put("one piece"))
        .then(key(format!("{shop}/buyers")).append(format!("{customer}\n")))
        .execute()
        .await?;
    match outcome.branch {
        TxnBranch::Then => Ok(true),
        TxnBranch::OrElse(failed) if failed.index == 0 => Ok(true), // sold earlier
        TxnBranch::OrElse(_) => Ok(false),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = common::connect().await?;
    let shop = format!("example/shop/{}", std::process::id());
    let stock = client.add(format!("{shop}/stock"), 3).await?;
    println!("{stock} pieces are for sale");

    let selling = ["Ada", "Bob", "Cai", "Dee", "Eve"].map(|customer| {
        let (client, shop) = (client.clone(), shop.clone());
        tokio::spawn(async move { sell(&client, &shop, customer).await })
    });
    let mut sold = 0;
    for customer in selling {
        sold += i32::from(customer.await??);
    }
    assert_eq!(sold, 3);

    // The list of the buyers is taken and begun anew at one moment, so that no name is lost.
    let buyers = client.get_and_put(format!("{shop}/buyers"), "").await?;
    let buyers = buyers.expect("there are buyers").value;
    let names = String::from_utf8_lossy(&buyers);
    println!("sold to {}", names.lines().collect::<Vec<_>>().join(", "));
    assert_eq!(names.lines().count(), 3);

    // A transaction may also remove a whole range of keys that were read before.
    let range = (format!("{shop}/"), format!("{shop}0"));
    let left = client.scan(range.0, range.1, 100).await?;
    let removals = left.into_iter().map(|entry| key(entry.key).delete());
    let removed = client.txn().then(removals).execute().await?;
    println!("removed {} keys", removed.results.len());
    Ok(())
}
