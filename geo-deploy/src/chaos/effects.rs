//! Effects of an operation on each key: the values that it read, and the values that it wrote.

use std::collections::BTreeMap;

use bytes::Bytes;
use leasehold_histories::history::{HistoryAction, ValueId};

use super::keys::{GROUP_KEYS, KeyKind, fields_of, kind_of, number_of, recognise, tokens_of};
use super::ledger::{Growth, Growths};

/// Actions of an operation on registers and fields, with their keys. An action is the value that
/// was read, or the write that was performed. If an operation read a key and then deleted it, the
/// key has two actions. Otherwise each key has one.
pub type Parts = Vec<(u64, HistoryAction)>;

/// Effects of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Actions on registers and fields of records.
    pub parts: Parts,
    /// Actions on lists and counters.
    pub growths: Growths,
}

/// Description of an answer that a correct store could not have given in any state.
pub type Contradiction = String;

impl From<Parts> for Effects {
    fn from(parts: Parts) -> Effects {
        let growths = Growths::new();
        Effects { parts, growths }
    }
}

/// Collects the effects of one operation in the order in which its steps are executed. Refuses
/// observations that contradict each other.
#[derive(Debug, Default)]
pub struct EffectCollector {
    cells: BTreeMap<u64, Cell>,
    growths: Growths,
    /// Number of tokens of each list, and value of each counter, as far as the operation knows it.
    sizes: BTreeMap<u64, i64>,
}

/// Knowledge about one register or field. The inner value is `None` if the key is absent.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Value before the operation; `None` if the operation has not observed it.
    found: Option<Option<ValueId>>,
    /// Value that the operation wrote; `None` if it has not written the key.
    left: Option<Option<ValueId>>,
}

impl Cell {
    fn now(&self) -> Option<Option<ValueId>> {
        self.left.or(self.found)
    }
}

impl EffectCollector {
    /// Notes that the operation found this value; `None` if the key did not exist.
    ///
    /// # Errors
    /// If the operation cannot have found this value.
    pub fn see(&mut self, key: u64, value: Option<&Bytes>) -> Result<(), Contradiction> {
        match kind_of(key) {
            KeyKind::Register | KeyKind::Record => {
                let contents = contents(key, value)?;
                contents
                    .into_iter()
                    .try_for_each(|(key, value)| self.see_field(key, value))
            }
            KeyKind::Field => match value {
                Some(_) => Err(format!("found key {key}, which no client wrote")),
                None => Ok(()),
            },
            KeyKind::List => {
                let tokens = value.map_or(Some(Vec::new()), tokens_of);
                let tokens = tokens.ok_or_else(|| foreign(key, value))?;
                self.grow(key, tokens.len() as i64, 0)?;
                self.growths.push((key, Growth::List(tokens)));
                Ok(())
            }
            KeyKind::Counter => {
                let number = value.map_or(Some(0), number_of);
                let number = number.ok_or_else(|| foreign(key, value))?;
                self.grow(key, number, 0)?;
                self.growths.push((key, Growth::Counter(number)));
                Ok(())
            }
        }
    }

    /// Notes that the operation found this value of a register or field.
    ///
    /// # Errors
    /// If the key cannot hold this value.
    pub fn see_field(&mut self, key: u64, value: Option<ValueId>) -> Result<(), Contradiction> {
        let cell = self.cells.entry(key).or_default();
        match cell.now() {
            Some(known) if known != value => Err(format!(
                "found {} at key {key}, which holds {}",
                name(value),
                name(known)
            )),
            Some(_) => Ok(()),
            None => {
                cell.found = Some(value);
                Ok(())
            }
        }
    }

    /// Returns the value that the key of a register had before the operation; `None` if it is
    /// unknown.
    pub fn found(&self, key: u64) -> Option<Option<ValueId>> {
        self.cells.get(&key)?.found
    }

    /// Returns the value that the key of a register or field has now; `None` if it is unknown.
    pub fn now(&self, key: u64) -> Option<Option<ValueId>> {
        self.cells.get(&key)?.now()
    }

    /// Notes that the operation wrote this value; `None` if it deleted the key.
    pub fn write(&mut self, key: u64, value: Option<ValueId>) {
        self.cells.entry(key).or_default().left = Some(value);
    }

    /// Notes that the operation appended a token. `length` is the number of tokens afterwards; `None`
    /// if the answer does not say it.
    ///
    /// # Errors
    /// If the list cannot have this length.
    pub fn append(
        &mut self,
        key: u64,
        token: ValueId,
        length: Option<usize>,
    ) -> Result<(), Contradiction> {
        match length {
            Some(length) => self.grow(key, length as i64, 1)?,
            None => drop(self.sizes.remove(&key)),
        }
        self.growths.push((key, Growth::Append { token, length }));
        Ok(())
    }

    /// Notes that the operation added a number. `sum` is the value of the counter afterwards; `None`
    /// if the answer does not say it.
    ///
    /// # Errors
    /// If the counter cannot have this value.
    pub fn add(&mut self, key: u64, delta: i64, sum: Option<i64>) -> Result<(), Contradiction> {
        match sum {
            Some(sum) => self.grow(key, sum, delta)?,
            None => drop(self.sizes.remove(&key)),
        }
        self.growths.push((key, Growth::Add { delta, sum }));
        Ok(())
    }

    /// Notes the number of tokens of a list, or the value of a counter, after it has grown by `by`.
    ///
    /// # Errors
    /// If an earlier size is known, and `size` is not larger by `by`.
    fn grow(&mut self, key: u64, size: i64, by: i64) -> Result<(), Contradiction> {
        match self.sizes.insert(key, size) {
            Some(before) if before.checked_add(by) != Some(size) => Err(format!(
                "gives key {key} the size {size}, but the key had size {before} just before and grew by {by}"
            )),
            _ => Ok(()),
        }
    }

    /// Returns the effects.
    pub fn finish(self) -> Effects {
        let mut parts = Parts::new();
        for (key, Cell { found, left }) in self.cells {
            let read = |value| (key, HistoryAction::Read { value });
            match (found, left) {
                (None, None) => {}
                (None, Some(Some(value))) => parts.push((key, HistoryAction::Write { value })),
                (None, Some(None)) => parts.push((key, HistoryAction::Delete)),
                (Some(found), None) => parts.push(read(found)),
                (Some(expected), Some(Some(new))) => {
                    let swapped = true;
                    let action = HistoryAction::Cas {
                        expected,
                        new,
                        swapped,
                    };
                    parts.push((key, action));
                }
                (Some(None), Some(None)) => parts.push(read(None)),
                (Some(found), Some(None)) => {
                    parts.extend([read(found), (key, HistoryAction::Delete)]);
                }
            }
        }
        let growths = self.growths;
        Effects { parts, growths }
    }
}

/// Returns the contents of a register or record. For a record, these are the contents of all keys
/// of its group.
///
/// # Errors
/// If no client wrote the value.
pub fn contents(
    key: u64,
    value: Option<&Bytes>,
) -> Result<Vec<(u64, Option<ValueId>)>, Contradiction> {
    let is_record = kind_of(key) == KeyKind::Record;
    Ok(match value {
        None if is_record => (key..key + GROUP_KEYS).map(|key| (key, None)).collect(),
        None => vec![(key, None)],
        Some(bytes) if is_record => {
            let fields = fields_of(key, bytes).ok_or_else(|| foreign(key, value))?;
            (key..).zip(fields).collect()
        }
        Some(bytes) => {
            let id = recognise(bytes).ok_or_else(|| foreign(key, value))?;
            vec![(key, Some(id))]
        }
    })
}

/// Returns the token with these bytes.
///
/// # Errors
/// If the bytes are no token.
pub fn token(key: u64, bytes: &Bytes) -> Result<ValueId, Contradiction> {
    match tokens_of(bytes).as_deref() {
        Some([token]) => Ok(*token),
        _ => Err(foreign(key, Some(bytes))),
    }
}

fn foreign(key: u64, value: Option<&Bytes>) -> Contradiction {
    let size = value.map_or(0, Bytes::len);
    format!("found {size} bytes at key {key} that no client wrote")
}

fn name(value: Option<ValueId>) -> String {
    value.map_or("no value".to_owned(), |value| format!("value {}", value.0))
}

#[cfg(test)]
mod tests {
    use super::super::keys::{COUNTERS, LISTS, stored};
    use super::*;

    fn read(value: u64) -> HistoryAction {
        let value = Some(ValueId(value));
        HistoryAction::Read { value }
    }

    #[test]
    fn each_key_has_the_first_value_found_and_the_last_value_written() {
        let mut collector = EffectCollector::default();
        let see = |collector: &mut EffectCollector, key, value| {
            collector.see(key, Some(&stored(ValueId(value))))
        };
        see(&mut collector, 1, 10).unwrap();
        collector.write(1, Some(ValueId(11)));
        collector.write(1, Some(ValueId(12)));
        see(&mut collector, 1, 12).unwrap();
        assert!(see(&mut collector, 1, 11).is_err_and(|what| what.contains("holds value 12")));
        see(&mut collector, 2, 20).unwrap();
        collector.write(2, None);
        collector.see(2, None).unwrap();
        collector.write(3, None);
        collector.see(4, None).unwrap();
        assert!(see(&mut collector, 4, 40).is_err());
        let swap = HistoryAction::Cas {
            expected: Some(ValueId(10)),
            new: ValueId(12),
            swapped: true,
        };
        let parts = [
            (1, swap),
            (2, read(20)),
            (2, HistoryAction::Delete),
            (3, HistoryAction::Delete),
            (4, HistoryAction::Read { value: None }),
        ];
        assert_eq!(collector.finish(), Effects::from(parts.to_vec()));
    }

    #[test]
    fn a_list_or_counter_grows_by_what_the_operation_did() {
        let (list, counter) = (LISTS.start, COUNTERS.start);
        let mut collector = EffectCollector::default();
        collector.append(list, ValueId(7), Some(4)).unwrap();
        collector.append(list, ValueId(8), Some(5)).unwrap();
        assert!(collector.append(list, ValueId(9), Some(7)).is_err());
        collector.see(counter, Some(&"5".into())).unwrap();
        collector.add(counter, 3, Some(8)).unwrap();
        assert!(collector.see(counter, Some(&"9".into())).is_err());
        assert!(collector.see(counter, Some(&"nine".into())).is_err());
        assert!(collector.see(list, Some(&"half".into())).is_err());
    }
}
