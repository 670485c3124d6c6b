-- Schema 7. A profile names the driver that opens its browser. Until now every profile was opened by the local one.
ALTER TABLE profiles RENAME COLUMN browser TO driver;
UPDATE profiles SET driver = 'local';
