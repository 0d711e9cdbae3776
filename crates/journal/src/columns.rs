//! The columns of a row, by their names.
//!
//! A statement and the code that reads its rows agree by names, so a new column cannot shift
//! another. Must not know any table.

use marshal_model::UntrustedText;
use rusqlite::{Result, Row};

/// Reads columns in the types that SQLite does not have.
pub(super) trait Columns {
    /// An unsigned number; SQLite's integers are signed.
    fn number(&self, name: &str) -> Result<u64>;

    /// The same of a column that may be NULL.
    fn optional_number(&self, name: &str) -> Result<Option<u64>>;

    /// A text that an agent or a client wrote.
    fn untrusted(&self, name: &str) -> Result<UntrustedText>;

    /// The same of a column that may be NULL.
    fn optional_untrusted(&self, name: &str) -> Result<Option<UntrustedText>>;
}

impl Columns for Row<'_> {
    fn number(&self, name: &str) -> Result<u64> {
        self.get::<_, i64>(name).map(i64::unsigned_abs)
    }

    fn optional_number(&self, name: &str) -> Result<Option<u64>> {
        let number = self.get::<_, Option<i64>>(name)?;
        Ok(number.map(i64::unsigned_abs))
    }

    fn untrusted(&self, name: &str) -> Result<UntrustedText> {
        self.get::<_, String>(name).map(UntrustedText::new)
    }

    fn optional_untrusted(&self, name: &str) -> Result<Option<UntrustedText>> {
        let text = self.get::<_, Option<String>>(name)?;
        Ok(text.map(UntrustedText::new))
    }
}
